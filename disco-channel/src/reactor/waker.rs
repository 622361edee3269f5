//! What ends a poll from outside.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::event::{self, EventfdFlags};
use rustix::io as fd;

/// A descriptor that becomes readable when somebody wakes whoever polls it.
#[derive(Debug)]
pub(crate) struct Waker(OwnedFd);

impl Waker {
    pub(crate) fn new() -> io::Result<Self> {
        Ok(Self(event::eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?))
    }

    /// Wakes, now or when it is polled next.
    pub(crate) fn wake(&self) {
        // It fails only if it was woken 2^64 times already.
        _ = fd::write(&self.0, &1u64.to_ne_bytes());
    }

    /// Becomes quiet again.
    pub(crate) fn hear(&self) {
        // It fails only if nobody woke it.
        _ = fd::read(&self.0, &mut [0; 8]);
    }
}

impl AsFd for Waker {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}
