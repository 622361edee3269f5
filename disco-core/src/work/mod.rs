//! Operations that run while their caller computes: their handles, and the thread that runs them.

mod background;

use std::any::Any;
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
/// and an error breaks the communicator, so that the next operation returns it.
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
    /// Where the end is noted.
    notes: Option<Notes>,
}

/// How operations are recorded and measured, and the mark that they run.
pub(crate) struct Notes {
    ops: StartedOps,
    measured: metrics::Running,
    mark: Box<dyn Any + Send>,
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

    /// Whether the operations have ended, with or without an error. Never blocks. Operations on device tensors have
    /// ended for the host once they are enqueued.
    pub fn has_ended(&self) -> bool {
        self.0.as_ref().is_none_or(|pending| sync::lock(&pending.state).result.is_some())
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
            match &state.result {
                Some(result) => return result.clone(),
                None => state = sync::wait(&pending.has_ended, state),
            }
        }
    }

    /// Notes the end of the operations.
    pub(crate) fn note(&self, notes: Notes) {
        let Some(pending) = &self.0 else { return notes.end(true) };
        let mut state = sync::lock(&pending.state);
        match &state.result {
            Some(result) => notes.end(result.is_ok()),
            None => state.notes = Some(notes),
        }
    }
}

impl Ending {
    fn end(&self, result: Result<()>) {
        let mut state = sync::lock(&self.0.state);
        if state.result.is_some() {
            return;
        }
        // Under the lock, so that a waiter goes on with complete records.
        if let Some(notes) = state.notes.take() {
            notes.end(result.is_ok());
        }
        state.result = Some(result);
        drop(state);
        self.0.has_ended.notify_all();
    }
}

impl Notes {
    /// `mark` is dropped at the end of the operations.
    pub(crate) fn new(ops: StartedOps, measured: metrics::Running, mark: impl Send + 'static) -> Self {
        Self { ops, measured, mark: Box::new(mark) }
    }

    fn end(self, ok: bool) {
        self.ops.end(ok);
        self.measured.end(ok);
        drop(self.mark);
    }
}

impl Drop for Ending {
    fn drop(&mut self) {
        self.end(Err(Error::state("the operation was given up: the thread that runs it has ended")));
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
