//! Wakes a polling thread.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::event::{self, EventfdFlags};
use rustix::io as fd;

/// An eventfd that wakes the thread that polls it.
#[derive(Debug)]
pub(crate) struct Waker(OwnedFd);

impl Waker {
    pub(crate) fn new() -> io::Result<Self> {
        Ok(Self(event::eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?))
    }

    /// Wakes the current or the next poll.
    pub(crate) fn wake(&self) {
        // Fails only if the counter overflows; then the descriptor is readable anyway.
        _ = fd::write(&self.0, &1u64.to_ne_bytes());
    }

    /// Clears the wake-up.
    pub(crate) fn reset(&self) {
        // Fails only if there was no wake-up.
        _ = fd::read(&self.0, &mut [0; 8]);
    }
}

impl AsFd for Waker {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}
