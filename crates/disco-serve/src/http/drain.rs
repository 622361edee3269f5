//! The end of a server.

use std::time::Duration;

use tokio::sync::watch;
use tokio::time::Instant;

/// Ends a server: all clones are for the same one.
#[derive(Clone, Debug)]
pub struct Drain {
    phase: watch::Sender<Phase>,
}

/// How far the end is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Phase {
    Serving,
    /// New requests are refused. Those that run have this long.
    Draining(Instant),
    /// Requests that still run get an error.
    Ending,
}

impl Drain {
    /// For a server that goes on.
    pub fn new() -> Self {
        Self { phase: watch::Sender::new(Phase::Serving) }
    }

    /// Refuses new requests, and ends once those that run are complete, or after `limit` with an error for them. Only
    /// the first call has an effect.
    pub fn begin(&self, limit: Duration) {
        self.phase.send_if_modified(|phase| {
            let is_first = *phase == Phase::Serving;
            if is_first {
                *phase = Phase::Draining(Instant::now() + limit);
            }
            is_first
        });
    }

    /// Ends now. Requests that run get an error.
    pub fn end(&self) {
        self.phase.send_replace(Phase::Ending);
    }

    /// Waits until the server ends, which is not before its requests are complete or have an error.
    pub async fn ended(&self) {
        ending(&mut self.phase.subscribe()).await;
    }

    pub(super) fn phase(&self) -> Phase {
        *self.phase.borrow()
    }

    pub(super) fn subscribe(&self) -> watch::Receiver<Phase> {
        self.phase.subscribe()
    }
}

impl Default for Drain {
    fn default() -> Self {
        Self::new()
    }
}

/// Waits for the end.
pub(super) async fn ending(phase: &mut watch::Receiver<Phase>) {
    // An error says that the server is gone, which is an end as well.
    let _ = phase.wait_for(|phase| *phase == Phase::Ending).await;
}
