//! Waiting for descriptors, awake for a moment after something came.

use std::thread;
use std::time::{Duration, Instant};

use rustix::event::{self, PollFd, Timespec};

/// How long a thread that has just heard something stays awake: what it takes to wake a sleeping thread on another processor.
const AWAKE: Duration = Duration::from_micros(50);

/// Waits for what comes next at some descriptors.
#[derive(Debug, Default)]
pub(crate) struct Vigil {
    /// When something came last.
    heard: Option<Instant>,
}

impl Vigil {
    /// Waits until something comes, or for `limit`.
    pub(crate) fn wait(&mut self, polled: &mut [PollFd<'_>], limit: Duration) {
        let now = Timespec { tv_sec: 0, tv_nsec: 0 };
        while self.heard.is_some_and(|heard| heard.elapsed() < AWAKE) {
            match event::poll(polled, Some(&now)) {
                Ok(1..) => {
                    self.heard = Some(Instant::now());
                    return;
                }
                // To whoever has something to say, perhaps.
                _ => thread::yield_now(),
            }
        }
        // A signal ends it early, as it may.
        let came = event::poll(polled, Timespec::try_from(limit).ok().as_ref());
        self.heard = matches!(came, Ok(1..)).then(Instant::now);
    }
}
