//! Copies of bytes in shared memory.

#![allow(unsafe_code)]

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::ptr;
use std::sync::{Arc, Mutex};

use rustix::io::Errno;
use rustix::mm::{self, MapFlags, ProtFlags};

use super::os::Sealed;
use super::{Segment, os, segment};
use crate::error::{Error, Result};
use crate::sync;

/// Anonymous shared memory with a copy of some bytes. The system frees it with its last descriptor and mapping.
pub struct Snapshot {
    memory: Memory,
    bytes: usize,
}

enum Memory {
    /// Sealed, so that no process can change it.
    Frozen(OwnedFd),
    /// From a [`ReusedMemory`], which may get it back.
    Reused(Arc<Segment>),
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
        Ok(Self { memory: Memory::Frozen(fd), bytes })
    }

    /// Size in bytes.
    pub fn byte_len(&self) -> usize {
        self.bytes
    }
}

impl AsFd for Snapshot {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match &self.memory {
            Memory::Frozen(fd) => fd.as_fd(),
            Memory::Reused(segment) => segment.as_fd(),
        }
    }
}

crate::format_as!(Debug for Snapshot, |it| "<snapshot of {} bytes>", it.bytes);

/// The most bytes that a [`ReusedMemory`] keeps.
const MAX_KEPT_BYTES: usize = 256 << 20;

/// Memory of snapshots that receivers read before they answer: it is used again and again, so that neither end maps it and
/// allocates its pages each time, which takes several times as long as a copy.
#[derive(Debug, Default)]
pub struct ReusedMemory(Mutex<Option<Arc<Segment>>>);

impl ReusedMemory {
    /// Copies `bytes`. None if they are more than 256 MiB, or the system has too little memory.
    pub fn copy(&self, bytes: &[u8]) -> Option<Snapshot> {
        if bytes.len() > MAX_KEPT_BYTES {
            return None;
        }
        let kept = sync::lock(&self.0).take().filter(|kept| kept.byte_len() >= bytes.len());
        let segment = match kept {
            Some(kept) => kept,
            None => Arc::new(Segment::create(bytes.len().next_power_of_two()).ok()?),
        };
        // SAFETY: the segment is at least as long, and in use here only: it was taken out, or is new. Receivers that had it
        // before have read it.
        unsafe { ptr::copy_nonoverlapping(bytes.as_ptr(), segment.pointer(), bytes.len()) };
        Some(Snapshot { memory: Memory::Reused(segment), bytes: bytes.len() })
    }

    /// Takes the memory of a snapshot back whose receivers have read it. Without this call, the memory is freed.
    pub fn take_back(&self, snapshot: &Snapshot) {
        if let Memory::Reused(segment) = &snapshot.memory {
            *sync::lock(&self.0) = Some(segment.clone());
        }
    }
}

/// A mapping of the bytes of a [`Snapshot`]. It is private (copy-on-write), and other processes do not see writes to it, unless
/// the memory is [reused](Self::is_reused).
pub struct MappedSnapshot {
    pointer: *mut u8,
    bytes: usize,
    /// The device and the inode of memory that is reused.
    reused: Option<(u64, u64)>,
}

// SAFETY: the mapping is not bound to a thread, and no method dereferences the pointer.
unsafe impl Send for MappedSnapshot {}
// SAFETY: no method dereferences the pointer, so shared references can't cause a data race.
unsafe impl Sync for MappedSnapshot {}

impl MappedSnapshot {
    /// Maps a snapshot. If its memory is that of `last`, returns that mapping.
    ///
    /// # Errors
    /// The size of the memory is not sealed, or the system can't map it.
    pub fn open(fd: &OwnedFd, last: Option<&Arc<Self>>) -> Result<Arc<Self>> {
        let refuse = |errno: Errno| {
            Error::system(format!("shared memory of another process can't be mapped{}", os::limit_behind(errno)), errno)
        };
        let (bytes, sealed) = os::size(fd.as_fd()).map_err(refuse)?;
        if sealed == Sealed::No || bytes == 0 {
            return Err(Error::protocol(format!("shared memory of {bytes} bytes that is not sealed")));
        }
        let (sharing, reused) = match sealed {
            Sealed::Content => (MapFlags::PRIVATE, None),
            _ => (MapFlags::SHARED, Some(os::identity(fd.as_fd()).map_err(refuse)?)),
        };
        if let Some(last) = last.filter(|last| reused.is_some() && last.reused == reused) {
            return Ok(last.clone());
        }
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: the system chooses a free address, so the mapping replaces no other mapping.
        let pointer = unsafe { mm::mmap(ptr::null_mut(), bytes, protection, sharing | MapFlags::NORESERVE, fd, 0) };
        let pointer = pointer.map_err(|errno| segment::refused(bytes, errno))?;
        Ok(Arc::new(Self { pointer: pointer.cast(), bytes, reused }))
    }

    /// Whether the other process reuses the memory once it has got the reply to the packet beside which it came. The
    /// mapping is then shared, and its bytes change later.
    pub fn is_reused(&self) -> bool {
        self.reused.is_some()
    }

    /// Address of the first byte in this process; a page boundary. All bytes are valid for reads and writes as long as
    /// the mapping exists, and no other process changes them before the reply.
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

crate::format_as!(Debug for MappedSnapshot, |it| "<snapshot of {} bytes at {:p}>", it.bytes, it.pointer);

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
        let one = MappedSnapshot::open(&fd, None).unwrap();
        let two = MappedSnapshot::open(&fd, Some(&one)).unwrap();
        assert_eq!(
            (&bytes(&one)[..11], &bytes(&one)[4989..]),
            (&[1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 0][..], &[0, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2][..])
        );
        // SAFETY: the byte is mapped, and no slice of the mapping exists.
        unsafe { one.pointer().write(7) };
        assert_eq!((bytes(&one)[0], bytes(&two)[0]), (7, 1));
    }

    #[test]
    fn memory_that_was_taken_back_is_used_and_mapped_once() {
        let (memory, mut last) = (ReusedMemory::default(), None);
        for (round, bytes_len) in [5000, 100, 8192, 5000, 9000].into_iter().enumerate() {
            let snapshot = memory.copy(&vec![round as u8; bytes_len]).unwrap();
            let fd = snapshot.as_fd().try_clone_to_owned().unwrap();
            let mapped = MappedSnapshot::open(&fd, last.as_ref()).unwrap();
            assert_eq!((snapshot.byte_len(), mapped.is_reused()), (bytes_len, true));
            assert!(bytes(&mapped)[..bytes_len].iter().all(|byte| *byte == round as u8));
            // The first two have the memory of the first, 8 KiB, and so has the third.
            let is_first = last.as_ref().is_some_and(|last| Arc::ptr_eq(last, &mapped));
            assert_eq!(is_first, (1..4).contains(&round));
            memory.take_back(&snapshot);
            last = Some(mapped);
        }
        let lost = memory.copy(&[1; 10]).unwrap();
        let other = memory.copy(&[2; 10]).unwrap();
        assert_ne!(os::identity(lost.as_fd()).unwrap(), os::identity(other.as_fd()).unwrap());
        assert!(memory.copy(&vec![0; MAX_KEPT_BYTES + 1]).is_none());
    }

    #[test]
    fn opening_memory_that_is_not_sealed_against_writes_is_an_error() {
        let open = os::make_growing(4096).unwrap();
        let refused = MappedSnapshot::open(&open, None).unwrap_err().to_string();
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
