//! Operations that run while their caller computes: their handles, and the thread that runs them.

mod background;
mod policy;

use std::fmt;
use std::sync::{Arc, Condvar, Mutex};

pub use background::Background;

use crate::activity::StartedOps;
use crate::error::{Error, Result};
use crate::metrics;
use crate::sync;

/// The handle of a group of operations that [`Communicator::start`](crate::Communicator::start) has started.
///
/// Dropping it neither cancels the operations nor waits for them: their tensors stay claimed until the operations end,
/// and the next synchronisation of the communicator returns their error.
#[must_use = "wait for the operations before you use their tensors"]
pub struct Work(Option<Arc<Pending>>);

/// Operations that may still run.
#[derive(Default)]
struct Pending {
    state: Mutex<State>,
    has_ended: Condvar,
}

#[derive(Default)]
struct State {
    result: Option<Result<()>>,
    /// Whether the result was returned, or nobody needs to know it.
    is_seen: bool,
    /// Where the end is noted.
    notes: Option<Notes>,
}

/// How operations are recorded and measured, and how their error is changed.
pub(crate) struct Notes {
    ops: StartedOps,
    measured: metrics::Running,
    error: Box<dyn FnOnce(Error) -> Error + Send>,
}

/// The other end of a [`Work`]: ends it. Dropping the value ends it with an error.
pub(crate) struct Ending(Arc<Pending>);

impl Work {
    /// Operations that are complete, or that a device executes in the order of its stream.
    pub const fn done() -> Self {
        Self(None)
    }

    fn pending() -> (Self, Ending) {
        let pending = Arc::<Pending>::default();
        (Self(Some(pending.clone())), Ending(pending))
    }

    /// Another handle of the same operations.
    pub(crate) fn clone(&self) -> Self {
        Self(self.0.clone())
    }

    /// Whether the operations have ended, with or without an error. Never blocks. Operations on device tensors have
    /// ended for the host once they are enqueued.
    pub fn has_ended(&self) -> bool {
        self.0.as_ref().is_none_or(|pending| sync::lock(&pending.state).result.is_some())
    }

    /// Whether the operations have ended without an error.
    pub(crate) fn has_ended_well(&self) -> bool {
        self.0.as_ref().is_none_or(|pending| matches!(sync::lock(&pending.state).result, Some(Ok(()))))
    }

    /// The error of operations that have ended, unless it was seen.
    pub(crate) fn unseen_error(&self) -> Option<Error> {
        let mut state = sync::lock(&self.0.as_ref()?.state);
        let error = state.result.as_ref()?.as_ref().err().filter(|_| !state.is_seen).cloned();
        state.is_seen = true;
        error
    }

    /// Waits until the operations have ended. Each of them has the deadline of the communicator, from its begin: after
    /// the end of the operations before it. Further calls return the same result.
    ///
    /// # Errors
    /// As [`Communicator::enqueue`](crate::Communicator::enqueue).
    pub fn wait(&self) -> Result<()> {
        let Some(pending) = &self.0 else { return Ok(()) };
        let mut state = sync::lock(&pending.state);
        if let Some(notes) = &state.notes {
            notes.ops.note_wait();
        }
        loop {
            match state.result.clone() {
                Some(result) => {
                    state.is_seen = true;
                    return result;
                }
                None => state = sync::wait(&pending.has_ended, state),
            }
        }
    }

    /// Notes the end of the operations.
    pub(crate) fn note(&self, notes: Notes) {
        let Some(pending) = &self.0 else { return notes.end(Ok(())).unwrap_or_default() };
        let mut state = sync::lock(&pending.state);
        match state.result.take() {
            Some(result) => state.end(notes.end(result)),
            None => state.notes = Some(notes),
        }
    }
}

impl State {
    fn end(&mut self, result: Result<()>) {
        // The controller has cancelled the call: it knows that the operations are not complete.
        self.is_seen |= matches!(result, Err(Error::Cancelled { .. }));
        self.result = Some(result);
    }
}

impl Ending {
    fn end(&self, result: Result<()>) {
        let mut state = sync::lock(&self.0.state);
        if state.result.is_some() {
            return;
        }
        // Under the lock, so that a waiter goes on with complete records.
        let result = match state.notes.take() {
            Some(notes) => notes.end(result),
            None => result,
        };
        state.end(result);
        drop(state);
        self.0.has_ended.notify_all();
    }
}

impl Notes {
    /// `error` changes the error of the operations.
    pub(crate) fn new(
        ops: StartedOps,
        measured: metrics::Running,
        error: impl FnOnce(Error) -> Error + Send + 'static,
    ) -> Self {
        Self { ops, measured, error: Box::new(error) }
    }

    fn end(self, result: Result<()>) -> Result<()> {
        self.ops.end(result.is_ok());
        self.measured.end(result.is_ok());
        result.map_err(self.error)
    }
}

impl Drop for Ending {
    fn drop(&mut self) {
        self.end(Err(Error::state("the operation did not run: its thread has ended")));
    }
}

/// Operations that are complete.
impl Default for Work {
    fn default() -> Self {
        Self::done()
    }
}

impl fmt::Debug for Work {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.has_ended() { "<ended work>" } else { "<running work>" })
    }
}
