//! Operations that run while their caller computes: their handles, and the thread that runs them.

mod background;
mod policy;

use std::sync::{Arc, Condvar, Mutex};
use std::time::{Duration, Instant};

pub use background::Background;

use crate::activity::{OpState, StartedOps};
use crate::error::{Error, Result};
use crate::metrics;
use crate::sync;

/// The handle of a group of operations that [`Communicator::start`](crate::Communicator::start) has started.
///
/// ```
/// use std::time::Duration;
///
/// use disco_core::{Communicator, CommunicatorExt, Reduction, Result, Tensor, Work};
///
/// /// Sums `gradient` over the ranks, and computes until the sum is there or all steps are done.
/// fn overlap(comm: &mut dyn Communicator, gradient: &Tensor, mut steps: Vec<Box<dyn FnOnce()>>) -> Result<()> {
///     let sum: Work = comm.start_all_reduce_in_place(gradient, Reduction::Sum)?;
///     while !sum.has_ended()
///         && let Some(step) = steps.pop()
///     {
///         step();
///     }
///     while !sum.wait_timeout(Duration::from_secs(5))? {
///         println!("the sum still runs");
///     }
///     Ok(())
/// }
/// ```
///
/// Dropping it neither cancels the operations nor waits for them: their tensors stay claimed until the operations end,
/// and the next synchronisation of the communicator returns their error.
/// [`CommunicatorExt::cancel`](crate::CommunicatorExt::cancel) ends them early.
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
        self.wait_until(None).map(drop)
    }

    /// [`Work::wait`] for at most `timeout`. Returns whether the operations have ended; if they have not, they go on.
    ///
    /// # Errors
    /// As [`Work::wait`].
    pub fn wait_timeout(&self, timeout: Duration) -> Result<bool> {
        // A time beyond the clock's range is no limit.
        self.wait_until(Instant::now().checked_add(timeout))
    }

    /// Returns whether the operations have ended.
    fn wait_until(&self, end: Option<Instant>) -> Result<bool> {
        let Some(pending) = &self.0 else { return Ok(true) };
        let mut state = sync::lock(&pending.state);
        state.note_wait(true);
        loop {
            if let Some(result) = state.result.clone() {
                state.is_seen = true;
                return result.map(|()| true);
            }
            state = match end.map(|end| end.saturating_duration_since(Instant::now())) {
                None => sync::wait(&pending.has_ended, state),
                Some(Duration::ZERO) => {
                    state.note_wait(false);
                    return Ok(false);
                }
                Some(left) => sync::wait_timeout(&pending.has_ended, state, left),
            };
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
    fn note_wait(&self, waits: bool) {
        if let Some(notes) = &self.notes {
            notes.ops.note_wait(waits);
        }
    }

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
        let result = result.map_err(self.error);
        self.ops.end(OpState::of_result(&result));
        self.measured.end(result.is_ok());
        result
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

crate::format_as!(Debug for Work, |it| "{}", if it.has_ended() { "<ended work>" } else { "<running work>" });

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use super::*;
    use crate::activity::{OpPlace, OpState};
    use crate::link::Link;
    use crate::op::Op;

    #[test]
    fn a_wait_that_times_out_leaves_the_operation_running() {
        for result in [Ok(()), Err(Error::invalid("out of luck"))] {
            let (end, ended) = mpsc::channel();
            let work = Background::new(()).start(move |()| ended.recv().unwrap()).unwrap();
            assert!(!work.wait_timeout(Duration::ZERO).unwrap());
            assert!(!work.wait_timeout(Duration::from_millis(1)).unwrap() && !work.has_ended());
            end.send(result.clone()).unwrap();
            let waited = work.wait_timeout(Duration::MAX);
            assert_eq!(
                waited.map_err(|error| error.to_string()),
                result.map(|()| true).map_err(|error| error.to_string())
            );
        }
        assert!(Work::done().wait_timeout(Duration::ZERO).unwrap());
    }

    #[test]
    fn an_operation_whose_wait_has_timed_out_is_recorded_as_started() {
        let (end, ended) = mpsc::channel();
        let work = Background::new(()).start(move |()| ended.recv().unwrap()).unwrap();
        let link = Link::bare(Arc::default());
        let state = || link.activity().progress().ops[0].state;
        let running = link.activity().start_ops(&Op::Barrier, &[], 2, OpPlace::new(link.activity().intern("plane"), 1));
        work.note(Notes::new(running.go_on(link.activity()), metrics::Running::start(&[Op::Barrier]), |error| error));
        assert!(!work.wait_timeout(Duration::from_millis(1)).unwrap());
        assert_eq!(state(), OpState::Started);
        end.send(Ok(())).unwrap();
        work.wait().unwrap();
        assert_eq!(state(), OpState::Done);
    }
}
