//! Stubs for systems without sealed shared memory, where sessions of processes are not supported.

use std::ops::Range;
use std::os::fd::{BorrowedFd, OwnedFd};

use rustix::io::{Errno, Result};

pub(super) fn make(_: usize) -> Result<OwnedFd> {
    Err(Errno::NOSYS)
}

pub(super) fn make_growing(_: usize) -> Result<OwnedFd> {
    Err(Errno::NOSYS)
}

pub(super) fn write_at(_: BorrowedFd<'_>, _: &[u8], _: usize) -> Result<()> {
    Err(Errno::NOSYS)
}

pub(super) fn freeze(_: BorrowedFd<'_>) -> Result<()> {
    Err(Errno::NOSYS)
}

pub(super) fn advise_huge_pages(_: *mut u8, _: usize) {}

pub(super) fn populate(_: BorrowedFd<'_>, _: *mut u8, _: Range<usize>) -> Result<()> {
    Err(Errno::NOSYS)
}

pub(super) fn resize(_: BorrowedFd<'_>, _: usize) -> Result<()> {
    Err(Errno::NOSYS)
}

pub(super) fn freeze_mapped(_: BorrowedFd<'_>) -> Result<()> {
    Err(Errno::NOSYS)
}

pub(super) fn frozen_size(_: BorrowedFd<'_>) -> Result<Option<usize>> {
    Err(Errno::NOSYS)
}

/// The part of a descriptor that never changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Sealed {
    No,
    Size,
    Content,
}

pub(super) fn identity(_: BorrowedFd<'_>) -> Result<(u64, u64)> {
    Err(Errno::NOSYS)
}

pub(super) fn commit(_: BorrowedFd<'_>, _: Range<usize>) -> Result<()> {
    Err(Errno::NOSYS)
}

pub(super) fn size(_: BorrowedFd<'_>) -> Result<(usize, Sealed)> {
    Err(Errno::NOSYS)
}

pub(super) fn limit(_: usize) -> Option<usize> {
    None
}

pub(super) fn limit_behind(_: Errno) -> String {
    String::new()
}

pub(super) fn memory() -> usize {
    0
}
