//! One stretch of shared memory.

#![allow(unsafe_code)]

use std::fmt;
use std::ops::Range;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::ptr;
use std::slice;
use std::sync::atomic::{AtomicU32, AtomicU64};

use rustix::io::Errno;
use rustix::mm::{self, MapFlags, ProtFlags};

use super::os;
use crate::error::{Error, Memory, Result};

/// A stretch of memory that others map by its descriptor: a memfd, sealed to its size. Zeroed when it is made.
///
/// Its pages are allocated by [`Segment::create`] or [`Segment::commit`], so that a machine without room gives an error
/// there rather than `SIGBUS` later. It has no name in any file system: it is gone with its last descriptor and mapping.
pub struct Segment {
    fd: OwnedFd,
    pointer: *mut u8,
    bytes: usize,
}

// SAFETY: the mapping belongs to no thread, and the pointer is only handed out.
unsafe impl Send for Segment {}
// SAFETY: as above; `words` are atomic.
unsafe impl Sync for Segment {}

impl Segment {
    /// A segment of `bytes` bytes, all of them there.
    ///
    /// # Errors
    /// The system refuses: no room, or no descriptors left.
    pub fn create(bytes: usize) -> Result<Self> {
        let segment = Self::reserve(bytes)?;
        segment.commit(0..bytes)?;
        Ok(segment)
    }

    /// A segment of `bytes` bytes of addresses, without pages.
    ///
    /// # Errors
    /// The system refuses the descriptor, or the addresses.
    pub fn reserve(bytes: usize) -> Result<Self> {
        os::make(bytes).and_then(|fd| Self::map(fd, bytes)).map_err(|errno| refused(bytes, errno))
    }

    /// Allocates the pages of a range.
    ///
    /// # Errors
    /// There is no room.
    pub fn commit(&self, range: Range<usize>) -> Result<()> {
        match range.len() {
            0 => Ok(()),
            bytes => os::commit(self.fd.as_fd(), range).map_err(|errno| refused(bytes, errno)),
        }
    }

    /// Maps a segment that somebody else made.
    ///
    /// # Errors
    /// It is smaller than `at_least`, it may shrink, or the system refuses.
    pub fn open(fd: OwnedFd, at_least: usize) -> Result<Self> {
        let refuse = |errno: Errno| Error::system("a shared segment can't be mapped", errno);
        let (bytes, sealed) = os::size(fd.as_fd()).map_err(refuse)?;
        if bytes < at_least || !sealed {
            let not = if sealed { "" } else { ", and not sealed" };
            return Err(Error::protocol(format!("a shared segment of {bytes} bytes where {at_least} were due{not}")));
        }
        Self::map(fd, bytes).map_err(refuse)
    }

    fn map(fd: OwnedFd, bytes: usize) -> rustix::io::Result<Self> {
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a new mapping at an address of the system's choice touches nothing that is there.
        let pointer =
            unsafe { mm::mmap(ptr::null_mut(), bytes, protection, MapFlags::SHARED | MapFlags::NORESERVE, &fd, 0) };
        Ok(Self { fd, pointer: pointer?.cast(), bytes })
    }

    /// Address of the first byte here; a page boundary.
    pub fn pointer(&self) -> *mut u8 {
        self.pointer
    }

    /// Size in bytes.
    pub fn byte_len(&self) -> usize {
        self.bytes
    }

    /// All of it, as words. Other processes write to them whenever they like.
    pub fn words(&self) -> &[AtomicU64] {
        // SAFETY: the mapping has so many words from a page boundary on, lives as long as `self`, holds integers, and is
        // written to by atomic operations alone where anybody reads it as words.
        unsafe { slice::from_raw_parts(self.pointer.cast::<AtomicU64>(), self.bytes / size_of::<AtomicU64>()) }
    }

    /// All of it, as words half as wide, for futexes. No word is used both ways.
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
        // SAFETY: mapped once, in `map`, and borrowed by nobody any more.
        if let Err(error) = unsafe { mm::munmap(self.pointer.cast(), self.bytes) } {
            tracing::warn!(%error, segment = ?self, "can't be unmapped");
        }
    }
}

impl fmt::Debug for Segment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "<{} shared bytes at {:p}>", self.bytes, self.pointer)
    }
}

fn refused(bytes: usize, errno: Errno) -> Error {
    Error::OutOfMemory { bytes, memory: Memory::Shared, why: Some(errno.to_string()) }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::Ordering;

    use rustix::fs::{self, MemfdFlags};

    use super::*;

    #[test]
    fn whoever_opens_a_segment_sees_what_others_write() {
        let ours = Segment::create(4096).unwrap();
        let theirs = Segment::open(ours.as_fd().try_clone_to_owned().unwrap(), 4096).unwrap();
        assert_ne!(ours.pointer(), theirs.pointer());
        ours.words()[511].store(7, Ordering::Relaxed);
        assert_eq!(theirs.words()[511].load(Ordering::Relaxed), 7);
    }

    #[test]
    fn nobody_can_take_its_pages_away() {
        let segment = Segment::create(8192).unwrap();
        assert!(fs::ftruncate(&segment, 0).is_err());
        let unsealed = fs::memfd_create(c"unsealed", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING).unwrap();
        fs::ftruncate(&unsealed, 8192).unwrap();
        let refused = Segment::open(unsealed, 8192).unwrap_err().to_string();
        assert_eq!(refused, "a shared segment of 8192 bytes where 8192 were due, and not sealed");
        assert!(Segment::open(segment.as_fd().try_clone_to_owned().unwrap(), 8193).is_err());
    }

    #[test]
    fn shortage_is_an_error_where_it_is_made() {
        let refused = Segment::create(1 << 60).unwrap_err().to_string();
        assert!(refused.starts_with("no room for 1152921504606846976 bytes of shared memory: "), "{refused}");
    }
}
