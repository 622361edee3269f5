//! Anonymous shared memory on Linux.

use std::ops::Range;
use std::os::fd::{BorrowedFd, OwnedFd};

use rustix::fs::{self, FallocateFlags, MemfdFlags, SealFlags};
use rustix::io::{Errno, Result, retry_on_intr};
use rustix::process::{Resource, getrlimit};

/// Seals that fix the size, so that no peer can truncate memory that another peer has mapped.
const SEALS: SealFlags = SealFlags::SHRINK.union(SealFlags::GROW).union(SealFlags::SEAL);

/// [`SEALS`], and a seal against writes.
const FROZEN: SealFlags = SEALS.union(SealFlags::WRITE);

/// A sealed descriptor of `bytes` bytes without allocated pages.
pub(super) fn make(bytes: usize) -> Result<OwnedFd> {
    let fd = fs::memfd_create(c"disco", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
    fs::ftruncate(&fd, bytes as u64)?;
    fs::fcntl_add_seals(&fd, SEALS)?;
    Ok(fd)
}

/// An unsealed descriptor of `bytes` bytes without allocated pages.
pub(super) fn make_growing(bytes: usize) -> Result<OwnedFd> {
    let fd = fs::memfd_create(c"disco", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
    fs::ftruncate(&fd, bytes as u64)?;
    Ok(fd)
}

/// Writes all of `bytes` at an offset.
pub(super) fn write_at(fd: BorrowedFd<'_>, mut bytes: &[u8], offset: usize) -> Result<()> {
    let mut at = offset as u64;
    while !bytes.is_empty() {
        let written = retry_on_intr(|| rustix::io::pwrite(fd, bytes, at))?;
        if written == 0 {
            return Err(rustix::io::Errno::NOSPC);
        }
        (bytes, at) = (&bytes[written..], at + written as u64);
    }
    Ok(())
}

/// Seals a descriptor, so that its bytes never change.
pub(super) fn freeze(fd: BorrowedFd<'_>) -> Result<()> {
    fs::fcntl_add_seals(fd, FROZEN)
}

/// Asks for huge pages. That is advice: without them, nothing else changes.
#[allow(unsafe_code)]
pub(super) fn advise_huge_pages(pointer: *mut u8, bytes: usize) {
    // SAFETY: this advice changes no content, and an address that is not mapped is an error.
    if let Err(error) = unsafe { rustix::mm::madvise(pointer.cast(), bytes, rustix::mm::Advice::LinuxHugepage) } {
        tracing::debug!(%error, bytes, "no huge pages");
    }
}

/// Allocates the pages of a range that is mapped for writing, huge ones if they were asked for. `at` is its first byte.
#[allow(unsafe_code)]
pub(super) fn populate(fd: BorrowedFd<'_>, at: *mut u8, range: Range<usize>) -> Result<()> {
    // At least the beginning of a page.
    let (before, bytes) = (range.start % (64 << 10), range.len());
    let start = at.wrapping_sub(before).cast();
    // SAFETY: this advice changes no content, and an address that is not mapped is an error.
    match unsafe { rustix::mm::madvise(start, before + bytes, rustix::mm::Advice::LinuxPopulateWrite) } {
        // Linux before 5.14.
        Err(Errno::INVAL) => commit(fd, range),
        Err(Errno::FAULT) => Err(Errno::NOMEM),
        other => other,
    }
}

/// Sets the size.
pub(super) fn resize(fd: BorrowedFd<'_>, bytes: usize) -> Result<()> {
    fs::ftruncate(fd, bytes as u64)
}

/// Seals a descriptor that is mapped for reading: nobody writes to it or maps it for writing any more.
pub(super) fn freeze_mapped(fd: BorrowedFd<'_>) -> Result<()> {
    fs::fcntl_add_seals(fd, SEALS.union(SealFlags::FUTURE_WRITE))
}

/// The size of a descriptor in bytes, if nobody can change it.
pub(super) fn frozen_size(fd: BorrowedFd<'_>) -> Result<Option<usize>> {
    let is_frozen = fs::fcntl_get_seals(fd)?.contains(SEALS.union(SealFlags::FUTURE_WRITE));
    Ok(if is_frozen { Some(fs::fstat(fd)?.st_size as usize) } else { None })
}

/// The part of a descriptor that never changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Sealed {
    No,
    Size,
    /// Size and content.
    Content,
}

/// The device and the inode of a descriptor: the same for all descriptors of one memory.
pub(super) fn identity(fd: BorrowedFd<'_>) -> Result<(u64, u64)> {
    fs::fstat(fd).map(|stat| (stat.st_dev, stat.st_ino))
}

/// Allocates the pages of a non-empty range.
pub(super) fn commit(fd: BorrowedFd<'_>, range: Range<usize>) -> Result<()> {
    retry_on_intr(|| fs::fallocate(fd, FallocateFlags::empty(), range.start as u64, range.len() as u64))
}

/// The size of a descriptor in bytes, and how it is sealed.
pub(super) fn size(fd: BorrowedFd<'_>) -> Result<(usize, Sealed)> {
    let seals = fs::fcntl_get_seals(fd)?;
    let sealed = match () {
        () if seals.contains(FROZEN) => Sealed::Content,
        () if seals.contains(SEALS) => Sealed::Size,
        () => Sealed::No,
    };
    Ok((fs::fstat(fd)?.st_size as usize, sealed))
}

/// The most bytes of a segment that limits of this process permit, if one such segment of each of `ranks` ranks is mapped
/// here; one mapping may have a quarter of the address space that is left.
pub(super) fn limit(ranks: usize) -> Option<usize> {
    let file = limit_of(Resource::Fsize);
    let space = limit_of(Resource::As).map(|space| space.saturating_sub(mapped()) / 4 / ranks.max(1));
    file.into_iter().chain(space).min()
}

/// A limit of this process that may be the reason of an error, in words that follow it; empty if there is none.
pub(super) fn limit_behind(errno: Errno) -> String {
    let limit = match errno {
        Errno::FBIG => limit_of(Resource::Fsize).map(|bytes| ("a file", bytes, "ulimit -f")),
        Errno::NOMEM => limit_of(Resource::As).map(|bytes| ("the address space", bytes, "ulimit -v")),
        _ => None,
    };
    limit.map_or_else(String::new, |(what, bytes, ulimit)| format!("; {what} is limited to {bytes} bytes (`{ulimit}`)"))
}

fn limit_of(resource: Resource) -> Option<usize> {
    getrlimit(resource).current.and_then(|limit| usize::try_from(limit).ok())
}

/// Bytes of the address space in use; 0 without `/proc`.
#[allow(clippy::disallowed_methods, reason = "a text of the kernel")]
fn mapped() -> usize {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let size = status.lines().find_map(|line| line.strip_prefix("VmSize:"));
    let kib = size.and_then(|size| size.trim().trim_end_matches("kB").trim().parse::<usize>().ok());
    kib.unwrap_or(0) << 10
}

/// Physical memory of this machine in bytes.
pub(super) fn memory() -> usize {
    let info = rustix::system::sysinfo();
    (info.totalram as usize).saturating_mul(info.mem_unit as usize)
}
