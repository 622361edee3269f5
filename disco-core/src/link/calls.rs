//! Operations of a worker's calls, and the cancellation of calls.

#[cfg(test)]
mod tests;

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use super::Link;
use super::cancel::{InBackground, Inside};
use crate::abort_cause::AbortCause;
use crate::error::{Error, Result};
use crate::signal::{CallOps, Notice};
use crate::store::Store;
use crate::sync;

/// How often a wait for a key asks whether its call was cancelled.
const CANCELLED_INTERVAL: Duration = Duration::from_millis(100);

impl Link {
    /// Cancels the call with this command, for the reason `why`. If it has not ended, it begins no more operations, and an
    /// operation that it is inside, or that it has started, is aborted, which breaks the worker's communicators. The
    /// answer is a [`Notice::Cancelled`]. Lanes call this method.
    pub fn cancel(&self, command: u64, why: &Arc<str>) {
        let mut state = self.cancelled.state();
        let mut is_aborted = false;
        if command > self.activity.finished() {
            state.leave(command, why);
            self.cancelled.is_any.store(true, Ordering::SeqCst);
            let is_inside = self.cancelled.inside.load(Ordering::SeqCst) > 0 && self.activity.received() == command;
            is_aborted = is_inside || state.background.contains(&command);
            if is_aborted {
                self.aborts.end_operations(&AbortCause::Cancelled { command, why: why.clone() });
            }
        }
        // It may have left the call before, when a peer had learned of the cancellation.
        let has_left = state.unsettled.contains(&command);
        let ops = if is_aborted { CallOps::Other } else { self.cancelled.begun.of(command) };
        drop(state);
        self.cancelled.changed.notify_all();
        self.credit.wake();
        self.notify(Notice::Cancelled { command, has_left, ops });
    }

    /// Ends the waits for the answers of all workers to a cancellation. If it `breaks` communicators, for this reason, those
    /// that the call could have used are aborted. Lanes call this method.
    pub fn settle(&self, command: u64, breaks: Option<&Arc<str>>) {
        let mut state = self.cancelled.state();
        state.unsettled.retain(|unsettled| *unsettled != command);
        self.cancelled.note_any(&state);
        if let Some(why) = breaks.filter(|_| command >= state.data_plane) {
            self.aborts.end_operations(&AbortCause::Cancelled { command, why: why.clone() });
        }
        drop(state);
        self.cancelled.changed.notify_all();
    }

    /// Why the call with this command was cancelled, if it was.
    #[inline]
    pub(crate) fn cancelled(&self, command: u64) -> Option<Arc<str>> {
        self.cancelled.why(command)
    }

    /// Why the call that the worker runs was cancelled, if it was.
    pub(crate) fn cancelled_now(&self) -> Option<Arc<str>> {
        self.cancelled(self.activity.received())
    }

    /// Begins operations of a communicator, once the cancellations of calls that this worker has left are settled.
    ///
    /// # Errors
    /// The call that the worker runs is cancelled; [`Error::Deadline`] if a cancellation is not settled in time.
    #[inline]
    pub(crate) fn begin_operation(&self, ops: CallOps, deadline: Duration) -> Result<Inside<'_>> {
        self.cancelled.enter();
        let mut inside = Inside { cancelled: &self.cancelled, begins: None };
        if self.cancelled.is_any.load(Ordering::SeqCst) {
            drop(inside);
            inside = self.begin_after_cancellations(deadline)?;
        }
        inside.begins = Some((self.activity.received(), ops));
        Ok(inside)
    }

    #[cold]
    fn begin_after_cancellations(&self, deadline: Duration) -> Result<Inside<'_>> {
        let (start, mut state) = (Instant::now(), self.cancelled.state());
        loop {
            if let Some(cause) = state.why(self.activity.received()) {
                return Err(Error::Cancelled { cause });
            }
            let Some(command) = state.unsettled.first().filter(|_| !self.is_aborted()) else { break };
            let Some(left) = deadline.checked_sub(start.elapsed()) else {
                return Err(Error::Deadline {
                    operation: "operation after a cancellation".to_owned(),
                    after: deadline,
                    state: format!("not all workers have answered the cancellation of command {command}"),
                });
            };
            state = sync::wait_timeout(&self.cancelled.changed, state, left);
        }
        self.cancelled.enter();
        Ok(Inside { cancelled: &self.cancelled, begins: None })
    }

    /// Begins a wait for operations.
    #[inline]
    pub(crate) fn begin_wait(&self) -> Inside<'_> {
        self.cancelled.enter();
        if self.cancelled.is_any.load(Ordering::SeqCst) {
            // A cancellation may have counted an operation that has ended, and must not hit this wait.
            drop(self.cancelled.state());
        }
        Inside { cancelled: &self.cancelled, begins: None }
    }

    /// From now on, the worker has other communicators, which the command that it runs makes. A cancellation that aborts
    /// the old ones now does so before this returns.
    pub(crate) fn begin_data_plane(&self) {
        let command = self.activity.received();
        self.cancelled.state().data_plane = command;
        self.cancelled.begun.add(command, CallOps::Other);
    }

    /// Begins an operation in the background. The caller has [begun](Link::begin_operation) it.
    pub(crate) fn go_to_background(&self) -> InBackground {
        let command = self.activity.received();
        self.cancelled.state().background.push(command);
        InBackground { cancelled: self.cancelled.clone(), activity: self.activity.clone(), command }
    }

    /// The error of an operation in the call that the worker runs, or the cancellation that was its cause.
    pub(crate) fn error_of_operation(&self, error: Error) -> Error {
        self.cancelled.error_of(self.activity.received(), true, error)
    }

    /// [`Store::wait`], which a cancellation of the worker's call ends, too, and an error of `go_on`.
    ///
    /// # Errors
    /// As [`Store::wait`]; [`Error::Cancelled`]; errors of `go_on`.
    pub(crate) fn await_key(
        &self,
        store: &dyn Store,
        key: &str,
        deadline: Duration,
        go_on: impl Fn() -> Result<()>,
    ) -> Result<Vec<u8>> {
        let start = Instant::now();
        loop {
            go_on()?;
            let left = deadline.saturating_sub(start.elapsed());
            match store.wait(key, left.min(CANCELLED_INTERVAL)) {
                Err(Error::Deadline { .. }) if left > CANCELLED_INTERVAL => {}
                Err(Error::Deadline { operation, state, .. }) => {
                    return Err(Error::Deadline { operation, after: deadline, state });
                }
                other => return other,
            }
            if let Some(cause) = self.cancelled_now() {
                return Err(Error::Cancelled { cause });
            }
        }
    }

    /// Notes that the controller has taken `count` results of the call with this command. Lanes call this method.
    pub fn note_taken(&self, command: u64, count: u64) {
        self.credit.note(command, count);
    }

    /// The number of results of the call with this command that were taken so far.
    pub(crate) fn taken(&self, command: u64) -> u64 {
        self.credit.taken(command)
    }

    /// Waits until more than `count` results of the call with this command are taken.
    ///
    /// # Errors
    /// [`Error::Cancelled`]; [`Error::Aborted`]; [`Error::Deadline`].
    pub(crate) fn await_taken(&self, command: u64, count: u64, deadline: Duration) -> Result<()> {
        // Locks in the order of `cancel`, which wakes this wait without its own lock.
        self.credit.wait(command, count, deadline, || match self.cancelled(command) {
            Some(cause) => Err(Error::Cancelled { cause }),
            None => self.check_aborted(),
        })
    }

    /// Forgets the cancellation of a call that has ended.
    #[inline]
    pub(crate) fn end_call(&self, command: u64) {
        if self.cancelled.is_any.load(Ordering::Relaxed) {
            let mut state = self.cancelled.state();
            state.calls.retain(|call| call.0 > command);
            self.cancelled.note_any(&state);
        }
    }

    /// Wakes operations that wait for a cancellation to be settled: the session was aborted, or an epoch begins, in which
    /// no cancellation of an earlier one is settled.
    pub(super) fn end_waits_for_cancellations(&self, is_over: bool) {
        let mut state = self.cancelled.state();
        if is_over {
            // Those of later commands belong to the epoch that begins.
            let now = self.activity.received();
            state.unsettled.retain(|command| *command > now);
            self.cancelled.note_any(&state);
        }
        drop(state);
        self.cancelled.changed.notify_all();
    }
}
