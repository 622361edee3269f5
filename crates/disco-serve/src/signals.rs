//! Ctrl-C and SIGTERM.

use std::sync::{Arc, OnceLock};
use std::thread;
use std::time::Duration;

use anyhow::{Context as _, Result};
use disco_serve::health::Health;
use disco_serve::http::Drain;
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::iterator::Signals;
use signal_hook::low_level::emulate_default_handler;

use crate::log;

/// The signals of this process, which end it as usual until a server is there.
#[derive(Clone, Default)]
pub(crate) struct Ends(Arc<OnceLock<Served>>);

struct Served {
    drain: Drain,
    health: Arc<Health>,
    limit: Duration,
}

impl Ends {
    /// Handles the signals from now on. Called before [`disco::init`]: Ctrl-C reaches all processes of a terminal, and
    /// workers go on, so that the controller ends them.
    pub(crate) fn handle() -> Result<Signals> {
        Signals::new([SIGINT, SIGTERM]).context("signals can't be handled")
    }

    /// Starts the thread that answers the signals.
    pub(crate) fn answer(mut signals: Signals, log: log::Format) -> Result<Self> {
        let ends = Self::default();
        let answering = ends.clone();
        let answer = move || {
            let mut number = 0;
            for signal in signals.forever() {
                number = if answering.0.get().is_some() { number + 1 } else { 0 };
                answering.end(signal, number, log);
            }
        };
        thread::Builder::new().name("signals".into()).spawn(answer)?;
        Ok(ends)
    }

    /// Lets the first signal from now on end the server once its requests are complete or `limit` has passed, and the
    /// second one at once. A third one ends the process, whose workers end then.
    pub(crate) fn drain(&self, drain: Drain, health: Arc<Health>, limit: Duration) {
        _ = self.0.set(Served { drain, health, limit });
    }

    fn end(&self, signal: i32, number: u32, log: log::Format) {
        match (self.0.get(), number) {
            (Some(Served { drain, health, limit }), 1) => {
                let seconds = limit.as_secs();
                log.tell(&format!("ending once the requests are complete, at most {seconds} s; again ends now"));
                health.drain();
                drain.begin(*limit);
            }
            (Some(Served { drain, .. }), 2) => drain.end(),
            _ => _ = emulate_default_handler(signal),
        }
    }
}
