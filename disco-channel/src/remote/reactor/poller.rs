//! Polls descriptors, spinning for a moment after each event before it sleeps.

use std::os::fd::AsFd;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use disco_core::channel::Polling;
use disco_core::{Channel, env};
use rustix::event::{self, PollFd, PollFlags, Timespec};

/// How long to spin after an event, unless `DISCO_SPIN_MICROS` says otherwise: longer than a round trip between threads
/// that have to be woken, so that one slow round trip does not make the next one slow.
const AWAKE_TIME: Duration = Duration::from_micros(100);

/// Waits for descriptors to become ready.
#[derive(Debug, Default)]
pub(crate) struct Poller {
    /// When a descriptor was ready last.
    last_event: Option<Instant>,
}

impl Poller {
    /// Waits until a descriptor is ready, at most for `limit`. While it spins, it polls `lanes` for replies.
    pub(crate) fn wait(&mut self, polled: &mut [PollFd<'_>], limit: Duration, lanes: &[Arc<dyn Channel>]) {
        if self.spin(polled, lanes) {
            return;
        }
        self.last_event = poll(polled, limit).then(Instant::now);
    }

    /// The last event needs no spinning, such as a heartbeat.
    pub(crate) fn rest(&mut self) {
        self.last_event = None;
    }

    /// Spins after an event. Returns whether a descriptor is ready.
    fn spin(&mut self, polled: &mut [PollFd<'_>], lanes: &[Arc<dyn Channel>]) -> bool {
        let Some(last_event) = self.last_event else { return false };
        let awake_time = env::spin_time().unwrap_or(AWAKE_TIME);
        let polling = Polling::start(lanes);
        while last_event.elapsed() < awake_time {
            if poll(polled, Duration::ZERO) {
                self.last_event = Some(Instant::now());
                return true;
            }
            polling.poll();
            // Lets a thread run that may be about to send.
            thread::yield_now();
        }
        false
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
