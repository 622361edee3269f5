//! Waiting for descriptors, awake for a moment after something came.

use std::os::fd::AsFd;
use std::thread;
use std::time::{Duration, Instant};

use rustix::event::{self, PollFd, PollFlags, Timespec};

/// How long a thread that has just heard something stays awake: what it takes to wake a sleeping thread on another processor.
const AWAKE: Duration = Duration::from_micros(50);

/// Waits for what comes next at some descriptors.
#[derive(Debug, Default)]
pub(crate) struct Poller {
    /// When something came last.
    heard: Option<Instant>,
}

impl Poller {
    /// Waits until something comes, or for `limit`.
    pub(crate) fn wait(&mut self, polled: &mut [PollFd<'_>], limit: Duration) {
        while self.heard.is_some_and(|heard| heard.elapsed() < AWAKE) {
            if poll(polled, Duration::ZERO) {
                self.heard = Some(Instant::now());
                return;
            }
            // To a thread that has something to say, perhaps.
            thread::yield_now();
        }
        self.heard = poll(polled, limit).then(Instant::now);
    }
}

/// Waits until something comes, or for `limit`. Returns whether something came. A signal ends it early.
pub(crate) fn poll(polled: &mut [PollFd<'_>], limit: Duration) -> bool {
    matches!(event::poll(polled, Timespec::try_from(limit).ok().as_ref()), Ok(1..))
}

/// The same with one descriptor.
pub(crate) fn poll_one(polled: &impl AsFd, events: PollFlags, limit: Duration) -> bool {
    poll(&mut [PollFd::new(polled, events)], limit)
}
