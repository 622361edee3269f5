//! Immutable copies of bytes in shared memory.

#![allow(unsafe_code)]

use std::fmt;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::ptr;

use rustix::io::Errno;
use rustix::mm::{self, MapFlags, ProtFlags};

use super::{os, segment};
use crate::error::{Error, Result};

/// Anonymous shared memory with a copy of some bytes, sealed so that no process can change them. The system frees it
/// with its last descriptor and mapping.
pub struct Snapshot {
    fd: OwnedFd,
    bytes: usize,
}

impl Snapshot {
    /// Copies each of `parts` to its offset in memory of `bytes` bytes; the rest is zero.
    ///
    /// # Errors
    /// The system has too little memory or no free descriptors.
    pub fn copy<'a>(bytes: usize, parts: impl IntoIterator<Item = (usize, &'a [u8])>) -> Result<Self> {
        let refuse = |errno| segment::refused(bytes, errno);
        let fd = os::make_growing(bytes).map_err(refuse)?;
        for (offset, part) in parts {
            os::write_at(fd.as_fd(), part, offset).map_err(refuse)?;
        }
        os::freeze(fd.as_fd()).map_err(refuse)?;
        Ok(Self { fd, bytes })
    }

    /// Size in bytes.
    pub fn byte_len(&self) -> usize {
        self.bytes
    }
}

impl AsFd for Snapshot {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

impl fmt::Debug for Snapshot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "<snapshot of {} bytes>", self.bytes)
    }
}

/// A private (copy-on-write) mapping of the bytes of a [`Snapshot`]. Other processes do not see writes to it.
pub struct MappedSnapshot {
    pointer: *mut u8,
    bytes: usize,
}

// SAFETY: the mapping is not bound to a thread, and no method dereferences the pointer.
unsafe impl Send for MappedSnapshot {}
// SAFETY: no method dereferences the pointer, so shared references can't cause a data race.
unsafe impl Sync for MappedSnapshot {}

impl MappedSnapshot {
    /// Maps a snapshot.
    ///
    /// # Errors
    /// The descriptor is not sealed against changes, or the system can't map it.
    pub fn open(fd: &OwnedFd) -> Result<Self> {
        let refuse = |errno: Errno| {
            Error::system(format!("shared memory of another process can't be mapped{}", os::limit_behind(errno)), errno)
        };
        let (bytes, is_frozen) = os::frozen_size(fd.as_fd()).map_err(refuse)?;
        if !is_frozen || bytes == 0 {
            return Err(Error::protocol(format!("shared memory of {bytes} bytes that is not sealed")));
        }
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: the system chooses a free address, so the mapping replaces no other mapping.
        let pointer =
            unsafe { mm::mmap(ptr::null_mut(), bytes, protection, MapFlags::PRIVATE | MapFlags::NORESERVE, fd, 0) };
        Ok(Self { pointer: pointer.map_err(refuse)?.cast(), bytes })
    }

    /// Address of the first byte in this process; a page boundary. All bytes are valid for reads and writes as long as
    /// the mapping exists, and no other process changes them.
    pub fn pointer(&self) -> *mut u8 {
        self.pointer
    }

    /// Size in bytes.
    pub fn byte_len(&self) -> usize {
        self.bytes
    }
}

impl Drop for MappedSnapshot {
    fn drop(&mut self) {
        // SAFETY: `open` mapped it once, and no borrow outlives `self`.
        if let Err(error) = unsafe { mm::munmap(self.pointer.cast(), self.bytes) } {
            tracing::warn!(%error, snapshot = ?self, "can't be unmapped");
        }
    }
}

impl fmt::Debug for MappedSnapshot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "<snapshot of {} bytes at {:p}>", self.bytes, self.pointer)
    }
}

#[cfg(test)]
mod tests {
    use std::slice;

    use super::*;

    fn bytes(mapped: &MappedSnapshot) -> &[u8] {
        // SAFETY: the test does not write to this mapping while the slice is in use.
        unsafe { slice::from_raw_parts(mapped.pointer(), mapped.byte_len()) }
    }

    #[test]
    fn each_mapping_of_a_snapshot_is_a_copy_of_its_own() {
        let snapshot = Snapshot::copy(5000, [(0, &[1; 10][..]), (4990, &[2; 10])]).unwrap();
        let fd = snapshot.as_fd().try_clone_to_owned().unwrap();
        let (one, two) = (MappedSnapshot::open(&fd).unwrap(), MappedSnapshot::open(&fd).unwrap());
        assert_eq!(
            (&bytes(&one)[..11], &bytes(&one)[4989..]),
            (&[1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 0][..], &[0, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2][..])
        );
        // SAFETY: the byte is mapped, and no slice of the mapping exists.
        unsafe { one.pointer().write(7) };
        assert_eq!((bytes(&one)[0], bytes(&two)[0]), (7, 1));
    }

    #[test]
    fn opening_memory_that_is_not_sealed_against_writes_is_an_error() {
        let open = os::make_growing(4096).unwrap();
        let refused = MappedSnapshot::open(&open).unwrap_err().to_string();
        assert_eq!(refused, "shared memory of 4096 bytes that is not sealed");
        let snapshot = Snapshot::copy(4096, [(0, &[1; 4096][..])]).unwrap();
        assert!(os::write_at(snapshot.as_fd(), &[2], 0).is_err(), "it is sealed against writes");
        assert!(rustix::fs::ftruncate(&snapshot, 0).is_err(), "and keeps its size");
    }

    #[test]
    fn a_snapshot_larger_than_memory_is_an_error() {
        let refused = Snapshot::copy(usize::MAX, []).unwrap_err().to_string();
        assert!(refused.starts_with("no room for 18446744073709551615 bytes of shared memory"), "{refused}");
    }
}
