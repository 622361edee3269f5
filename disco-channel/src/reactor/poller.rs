//! Polls descriptors, spinning for a moment after each event before it sleeps.

use std::os::fd::AsFd;
use std::thread;
use std::time::{Duration, Instant};

use disco_core::env;
use rustix::event::{self, PollFd, PollFlags, Timespec};

/// How long to spin after an event, unless `DISCO_SPIN_MICROS` says otherwise: about the time that it takes to wake a sleeping thread on another processor.
const AWAKE_TIME: Duration = Duration::from_micros(50);

/// Waits for descriptors to become ready.
#[derive(Debug, Default)]
pub(crate) struct Poller {
    /// When a descriptor was ready last.
    last_event: Option<Instant>,
}

impl Poller {
    /// Waits until a descriptor is ready, at most for `limit`.
    pub(crate) fn wait(&mut self, polled: &mut [PollFd<'_>], limit: Duration) {
        let awake_time = env::spin_time().unwrap_or(AWAKE_TIME);
        while self.last_event.is_some_and(|last_event| last_event.elapsed() < awake_time) {
            if poll(polled, Duration::ZERO) {
                self.last_event = Some(Instant::now());
                return;
            }
            // Lets a thread run that may be about to send.
            thread::yield_now();
        }
        self.last_event = poll(polled, limit).then(Instant::now);
    }
}

/// Waits until a descriptor is ready, at most for `limit`. Returns whether one is. May return early on a signal.
pub(crate) fn poll(polled: &mut [PollFd<'_>], limit: Duration) -> bool {
    matches!(event::poll(polled, Timespec::try_from(limit).ok().as_ref()), Ok(1..))
}

/// [`poll`] for one descriptor.
pub(crate) fn poll_one(polled: &impl AsFd, events: PollFlags, limit: Duration) -> bool {
    poll(&mut [PollFd::new(polled, events)], limit)
}
