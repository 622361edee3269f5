//! The state of the engine, for `/health` and `/ready`.

use std::fmt;
use std::sync::{Mutex, MutexGuard};
use std::time::{Duration, Instant};

use serde::Serialize;

use crate::sync;

/// The engine's state. The engine writes it, and the HTTP layer reads it.
#[derive(Debug, Default)]
pub struct Health {
    record: Mutex<Record>,
}

#[derive(Debug, Default)]
struct Record {
    state: State,
    is_draining: bool,
    /// When the step that runs now began.
    step_began: Option<Instant>,
    step_ended: Option<Instant>,
    load: Load,
}

/// Whether the engine takes requests.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum State {
    /// The model is being loaded.
    #[default]
    Starting,
    /// Requests are taken.
    Ready,
    /// Workers are being replaced. Requests that run wait for it.
    Repairing,
    /// No request is taken any more; those that run are completed.
    Draining,
    /// The engine has ended with an error.
    Failed,
}

impl fmt::Display for State {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Starting => "starting",
            Self::Ready => "ready",
            Self::Repairing => "repairing",
            Self::Draining => "draining",
            Self::Failed => "failed",
        })
    }
}

/// Requests and blocks of the cache.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Load {
    /// Requests that take part in steps.
    pub running: usize,
    /// Requests that wait for a slot or for blocks.
    pub waiting: usize,
    /// Blocks that a request can get.
    pub free_blocks: usize,
    /// All blocks.
    pub blocks: usize,
}

/// [`Health`] at one time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Snapshot {
    /// Whether the engine takes requests.
    pub state: State,
    /// Time since a step ended; `None` before the first one.
    pub last_step: Option<Duration>,
    /// Time since the step that runs now began; `None` if none runs.
    pub step: Option<Duration>,
    /// Requests and blocks.
    pub load: Load,
}

impl Health {
    /// The health of an engine that starts.
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets the state. After [`drain`](Self::drain), the only states are `Draining` and `Failed`.
    pub fn set_state(&self, state: State) {
        self.record().state = state;
    }

    /// Sets the state to `Draining` for ever.
    pub fn drain(&self) {
        self.record().is_draining = true;
    }

    /// Records that a step begins.
    pub fn step_began(&self) {
        self.record().step_began = Some(Instant::now());
    }

    /// Records that the step has ended, or that it was given up.
    pub fn step_ended(&self, load: Load) {
        let mut record = self.record();
        record.step_began = None;
        record.step_ended = Some(Instant::now());
        record.load = load;
    }

    /// Records how many requests and blocks there are, apart from a step.
    pub fn set_load(&self, load: Load) {
        self.record().load = load;
    }

    /// The state, times and load now.
    pub fn snapshot(&self) -> Snapshot {
        let record = self.record();
        let state = match record.state {
            State::Failed => State::Failed,
            _ if record.is_draining => State::Draining,
            state => state,
        };
        let since = |time: Option<Instant>| time.map(|time| time.elapsed());
        Snapshot { state, last_step: since(record.step_ended), step: since(record.step_began), load: record.load }
    }

    fn record(&self) -> MutexGuard<'_, Record> {
        sync::lock(&self.record)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_draining_engine_does_not_become_ready() {
        let health = Health::new();
        assert_eq!(health.snapshot().state, State::Starting);
        health.set_state(State::Ready);
        assert_eq!(health.snapshot().state, State::Ready);
        health.drain();
        health.set_state(State::Repairing);
        health.set_state(State::Ready);
        assert_eq!(health.snapshot().state, State::Draining);
        health.set_state(State::Failed);
        assert_eq!(health.snapshot().state, State::Failed);
    }

    #[test]
    fn a_step_runs_from_its_begin_to_its_end() {
        let health = Health::new();
        assert_eq!((health.snapshot().step, health.snapshot().last_step), (None, None));
        health.step_began();
        assert!(health.snapshot().step.is_some());
        let load = Load { running: 1, waiting: 2, free_blocks: 3, blocks: 4 };
        health.step_ended(load);
        let snapshot = health.snapshot();
        assert_eq!((snapshot.step, snapshot.load), (None, load));
        assert!(snapshot.last_step.is_some());
    }
}
