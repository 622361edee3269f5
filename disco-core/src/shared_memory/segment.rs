//! A segment of shared memory.

#![allow(unsafe_code)]

use std::ops::Range;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::ptr;
use std::slice;
use std::sync::atomic::{AtomicU32, AtomicU64};

use rustix::io::Errno;
use rustix::mm::{self, MapFlags, ProtFlags};

use super::os::{self, Sealed};
use crate::error::{Error, Memory, Result};

/// Zeroed shared memory that other processes map by its descriptor: a memfd whose size is sealed.
///
/// [`Segment::create`] and [`Segment::commit`] allocate its pages, so that lack of memory is an error there rather than
/// a later `SIGBUS`. The segment has no name in any file system; the system frees it with its last descriptor and
/// mapping.
pub struct Segment {
    fd: OwnedFd,
    pointer: *mut u8,
    bytes: usize,
}

// SAFETY: the mapping is not bound to a thread, and no method dereferences the pointer except as atomic words.
unsafe impl Send for Segment {}
// SAFETY: a shared reference gives access to the mapping only as atomic words.
unsafe impl Sync for Segment {}

impl Segment {
    /// A segment of `bytes` bytes with all pages allocated.
    ///
    /// # Errors
    /// The system has too little memory or no free descriptors.
    pub fn create(bytes: usize) -> Result<Self> {
        let segment = Self::reserve(bytes)?;
        segment.commit(0..bytes)?;
        Ok(segment)
    }

    /// A segment of `bytes` bytes of address space, without allocated pages.
    ///
    /// # Errors
    /// The system refuses the descriptor or the address space.
    pub fn reserve(bytes: usize) -> Result<Self> {
        os::make(bytes).and_then(|fd| Self::map(fd, bytes)).map_err(|errno| refused(bytes, errno))
    }

    /// Allocates the pages of a range.
    ///
    /// # Errors
    /// The system has too little memory.
    pub fn commit(&self, range: Range<usize>) -> Result<()> {
        match range.len() {
            0 => Ok(()),
            bytes => os::commit(self.fd.as_fd(), range).map_err(|errno| refused(bytes, errno)),
        }
    }

    /// Maps a segment of another process.
    ///
    /// # Errors
    /// The segment is smaller than `at_least`, its size is not sealed, or the system can't map it.
    pub fn open(fd: OwnedFd, at_least: usize) -> Result<Self> {
        let refuse =
            |errno: Errno| Error::system(format!("a shared segment can't be mapped{}", os::limit_behind(errno)), errno);
        let (bytes, sealed) = os::size(fd.as_fd()).map_err(refuse)?;
        if bytes < at_least || sealed == Sealed::No {
            let not = if sealed == Sealed::No { ", and not sealed" } else { "" };
            return Err(Error::protocol(format!("a shared segment of {bytes} bytes where {at_least} were due{not}")));
        }
        Self::map(fd, bytes).map_err(refuse)
    }

    fn map(fd: OwnedFd, bytes: usize) -> rustix::io::Result<Self> {
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: the system chooses a free address, so the mapping replaces no other mapping.
        let pointer =
            unsafe { mm::mmap(ptr::null_mut(), bytes, protection, MapFlags::SHARED | MapFlags::NORESERVE, &fd, 0) };
        Ok(Self { fd, pointer: pointer?.cast(), bytes })
    }

    /// Asks the system for huge pages, which it gives if it is set so (`shmem_enabled`): mapping and unmapping then take a thousandth
    /// of the time.
    #[must_use]
    pub fn with_huge_pages(self) -> Self {
        os::advise_huge_pages(self.pointer, self.bytes);
        self
    }

    /// Address of the first byte in this process; a page boundary.
    pub fn pointer(&self) -> *mut u8 {
        self.pointer
    }

    /// Size in bytes.
    pub fn byte_len(&self) -> usize {
        self.bytes
    }

    /// The segment as 64-bit words. Other processes may write to them at any time.
    pub fn words(&self) -> &[AtomicU64] {
        // SAFETY: the mapping starts at a page boundary, contains that number of words and lives as long as `self`. Any
        // bits are a valid integer. Memory that is read as words is written to by atomic operations only.
        unsafe { slice::from_raw_parts(self.pointer.cast::<AtomicU64>(), self.bytes / size_of::<AtomicU64>()) }
    }

    /// The segment as 32-bit words, for futexes. No memory is accessed with both word sizes.
    pub fn half_words(&self) -> &[AtomicU32] {
        // SAFETY: as in `words`.
        unsafe { slice::from_raw_parts(self.pointer.cast::<AtomicU32>(), self.bytes / size_of::<AtomicU32>()) }
    }
}

impl AsFd for Segment {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

impl Drop for Segment {
    fn drop(&mut self) {
        // SAFETY: `map` mapped it once, and no borrow outlives `self`.
        if let Err(error) = unsafe { mm::munmap(self.pointer.cast(), self.bytes) } {
            tracing::warn!(%error, segment = ?self, "can't be unmapped");
        }
    }
}

crate::format_as!(Debug for Segment, |it| "<{} shared bytes at {:p}>", it.bytes, it.pointer);

pub(super) fn refused(bytes: usize, errno: Errno) -> Error {
    Error::OutOfMemory { bytes, memory: Memory::Shared, why: Some(format!("{errno}{}", os::limit_behind(errno))) }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::Ordering;

    use rustix::fs::{self, MemfdFlags};

    use super::*;

    #[test]
    fn all_mappings_of_a_segment_share_their_content() {
        let ours = Segment::create(4096).unwrap();
        let theirs = Segment::open(ours.as_fd().try_clone_to_owned().unwrap(), 4096).unwrap();
        assert_ne!(ours.pointer(), theirs.pointer());
        ours.words()[511].store(7, Ordering::Relaxed);
        assert_eq!(theirs.words()[511].load(Ordering::Relaxed), 7);
    }

    #[test]
    fn a_segment_cannot_be_truncated_and_an_unsealed_one_is_refused() {
        let segment = Segment::create(8192).unwrap();
        assert!(fs::ftruncate(&segment, 0).is_err());
        let unsealed = fs::memfd_create(c"unsealed", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING).unwrap();
        fs::ftruncate(&unsealed, 8192).unwrap();
        let refused = Segment::open(unsealed, 8192).unwrap_err().to_string();
        assert_eq!(refused, "a shared segment of 8192 bytes where 8192 were due, and not sealed");
        assert!(Segment::open(segment.as_fd().try_clone_to_owned().unwrap(), 8193).is_err());
    }

    #[test]
    fn create_without_enough_memory_is_an_error() {
        let refused = Segment::create(1 << 60).unwrap_err().to_string();
        assert!(refused.starts_with("no room for 1152921504606846976 bytes of shared memory: "), "{refused}");
    }
}
