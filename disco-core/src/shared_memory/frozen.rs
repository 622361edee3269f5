//! Shared memory that is written once.

#![allow(unsafe_code)]

use std::ops::{Deref, Range};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::ptr;
use std::slice;
use std::sync::Arc;

use rustix::io::Errno;
use rustix::mm::{self, MapFlags, ProtFlags};

use super::{os, segment};
use crate::error::{Error, Result};

/// Bytes begin at multiples of this: a pair of cache lines.
const ALIGN: usize = 128;

/// Anonymous shared memory to which bytes are added, and which can be read meanwhile. Lack of memory is an error of
/// [`add`](Self::add), and no `SIGBUS`.
#[derive(Debug)]
pub struct Filling {
    fd: OwnedFd,
    mapped: Arc<Mapped>,
    /// Another mapping, to write to.
    writer: Mapped,
    used: usize,
}

/// Memory that no process can change any more.
#[derive(Debug)]
pub struct Frozen {
    fd: OwnedFd,
    mapped: Arc<Mapped>,
    bytes: usize,
}

/// Some bytes of a [`Filling`] or of [`Frozen`] memory. They never change, and their address is a multiple of 128.
#[derive(Clone, Debug)]
pub struct FrozenBytes {
    mapped: Arc<Mapped>,
    range: Range<usize>,
}

/// A mapping.
#[derive(Debug)]
struct Mapped {
    pointer: *mut u8,
    bytes: usize,
}

// SAFETY: the mapping is not bound to a thread. `Filling::add`, which has the filling for itself, writes to bytes that nothing reads yet;
// all other methods only read.
unsafe impl Send for Mapped {}
// SAFETY: as above.
unsafe impl Sync for Mapped {}

impl Mapped {
    /// Maps `bytes` bytes, which may be more than the memory has.
    fn new(fd: &OwnedFd, bytes: usize, protection: ProtFlags) -> Result<Self> {
        let flags = MapFlags::SHARED | MapFlags::NORESERVE;
        // SAFETY: the system chooses a free address, so the mapping replaces no other mapping.
        let pointer = unsafe { mm::mmap(ptr::null_mut(), bytes.max(1), protection, flags, fd, 0) };
        let pointer = pointer.map_err(|errno| segment::refused(bytes, errno))?;
        let mapped = Self { pointer: pointer.cast(), bytes: bytes.max(1) };
        os::advise_huge_pages(mapped.pointer, mapped.bytes);
        Ok(mapped)
    }
}

impl Drop for Mapped {
    fn drop(&mut self) {
        // SAFETY: `new` mapped it once, and no borrow outlives `self`.
        if let Err(error) = unsafe { mm::munmap(self.pointer.cast(), self.bytes) } {
            tracing::warn!(%error, "memory can't be unmapped");
        }
    }
}

impl Filling {
    /// Empty memory that can have as many bytes as this machine has memory.
    ///
    /// # Errors
    /// The system refuses it.
    pub fn new() -> Result<Self> {
        let most = os::limit(1).unwrap_or(usize::MAX).min(os::memory().next_power_of_two());
        let fd = os::make_growing(0).map_err(|errno| segment::refused(0, errno))?;
        let mapped = Arc::new(Mapped::new(&fd, most, ProtFlags::READ)?);
        let writer = Mapped::new(&fd, most, ProtFlags::READ | ProtFlags::WRITE)?;
        Ok(Self { fd, mapped, writer, used: 0 })
    }

    /// Adds bytes.
    ///
    /// # Errors
    /// The system has too little memory.
    pub fn add(&mut self, bytes: &[u8]) -> Result<FrozenBytes> {
        let start = self.used.next_multiple_of(ALIGN);
        let end = start.checked_add(bytes.len()).filter(|end| *end <= self.mapped.bytes);
        let end = end.ok_or_else(|| segment::refused(bytes.len(), Errno::NOMEM))?;
        let at = self.writer.pointer.wrapping_add(start);
        let refused = |errno| segment::refused(bytes.len(), errno);
        os::resize(self.fd.as_fd(), end).map_err(refused)?;
        if !bytes.is_empty() {
            os::populate(self.fd.as_fd(), at, start..end).map_err(refused)?;
        }
        // SAFETY: the range is within the mapping and has pages; nobody reads or writes there before `used` is changed.
        unsafe { ptr::copy_nonoverlapping(bytes.as_ptr(), at, bytes.len()) };
        self.used = end;
        Ok(FrozenBytes { mapped: self.mapped.clone(), range: start..end })
    }

    /// Ends the filling.
    ///
    /// # Errors
    /// The system refuses it.
    pub fn freeze(self) -> Result<Frozen> {
        // Bytes that could not be added may have changed the size.
        let frozen = os::resize(self.fd.as_fd(), self.used).and_then(|()| os::freeze_mapped(self.fd.as_fd()));
        frozen.map_err(|errno| segment::refused(self.used, errno))?;
        Ok(Frozen { fd: self.fd, mapped: self.mapped, bytes: self.used })
    }
}

impl Frozen {
    /// Maps frozen memory of another process.
    ///
    /// # Safety
    /// [`Filling::freeze`] has frozen the memory. Other memory with these seals may be changed by a process that had mapped it before.
    ///
    /// # Errors
    /// It can still be changed; the system can't map it.
    pub unsafe fn open(fd: OwnedFd) -> Result<Self> {
        let refuse = |errno: Errno| Error::system("frozen memory can't be mapped", errno);
        let bytes = os::frozen_size(fd.as_fd()).map_err(refuse)?;
        let bytes = bytes.ok_or_else(|| Error::protocol("shared memory that is not frozen"))?;
        Ok(Self { mapped: Arc::new(Mapped::new(&fd, bytes, ProtFlags::READ)?), fd, bytes })
    }

    /// Size in bytes.
    pub fn byte_len(&self) -> usize {
        self.bytes
    }

    /// Some bytes; `None` if there are fewer.
    pub fn bytes(&self, range: Range<usize>) -> Option<FrozenBytes> {
        let is_there = range.start <= range.end && range.end <= self.bytes;
        is_there.then(|| FrozenBytes { mapped: self.mapped.clone(), range })
    }
}

impl AsFd for Frozen {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

impl FrozenBytes {
    /// Where they are in the memory.
    pub fn range(&self) -> Range<usize> {
        self.range.clone()
    }
}

impl Deref for FrozenBytes {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        let start = self.mapped.pointer.wrapping_add(self.range.start);
        // SAFETY: the range was written before this value was made, or is within memory whose size is sealed. Nobody changes it: a
        // filling only adds bytes behind it, and gives its descriptor away once nobody can write.
        unsafe { slice::from_raw_parts(start, self.range.len()) }
    }
}

#[cfg(test)]
mod tests {
    use rustix::fs;

    use super::*;

    #[test]
    fn bytes_that_were_added_stay_and_are_those_of_another_mapping() {
        let mut filling = Filling::new().unwrap();
        let first = filling.add(&[7; 200]).unwrap();
        let second = filling.add(&[9; 5000]).unwrap();
        assert_eq!((&first[..], second.range()), (&[7; 200][..], 256..5256));
        let ours = filling.freeze().unwrap();
        // SAFETY: it was frozen above.
        let theirs = unsafe { Frozen::open(ours.as_fd().try_clone_to_owned().unwrap()) }.unwrap();
        assert_eq!((theirs.byte_len(), &theirs.bytes(256..5256).unwrap()[..]), (5256, &second[..]));
        assert!(theirs.bytes(0..5257).is_none());
        assert!(fs::ftruncate(&ours, 0).is_err());
        assert!(rustix::io::pwrite(&ours, &[1], 0).is_err());
    }

    #[test]
    fn memory_that_can_be_changed_is_refused() {
        let segment = super::super::Segment::create(4096).unwrap();
        // SAFETY: it is refused.
        let opened = unsafe { Frozen::open(segment.as_fd().try_clone_to_owned().unwrap()) };
        assert!(matches!(opened, Err(Error::Protocol(_))), "{opened:?}");
    }
}
