//! Calls of a worker that the controller has cancelled, and whether the worker's communicators are whole after them.
//!
//! ```text
//! controller                       worker
//! Signal::Cancel   ──────────────▶ marks the call, which begins no operation from now on; aborts the operation that it is
//!                                  inside, and those that it has started
//!                  ◀────────────── Notice::Cancelled: whether the worker has left the call early, or leaves it out, and
//!                                  the operations of the call
//! (all workers have answered)
//! Signal::Settle   ──────────────▶ ends the waits of later calls; breaks the communicators if the answers do not agree
//! ```
//!
//! The n-th operation of one rank meets the n-th operation of the others, in whichever calls they are. So a worker that
//! has left a call begins no operation of a later one before the cancellation is settled: its peers may still be inside
//! an operation of the cancelled call, or may have completed it. The answers come from the threads of lanes; they do not
//! wait for functions.

#[cfg(test)]
mod tests;

use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use super::Link;
use crate::abort_cause::AbortCause;
use crate::activity::Activity;
use crate::error::{Error, Result};
use crate::signal::{CallOps, Notice};
use crate::store::Store;
use crate::sync;

/// How often a wait for a key asks whether its call was cancelled.
const CANCELLED_INTERVAL: Duration = Duration::from_millis(100);
/// Number of calls of which the operations are counted: the last ones that have begun operations.
const COUNTED_CALLS: usize = 64;

/// The cancelled calls of one worker, by the numbers of their commands, and the operations that run.
#[derive(Debug, Default)]
pub(super) struct Cancelled {
    /// Whether there are cancelled calls, or cancellations that are not settled; read without the lock.
    is_any: AtomicBool,
    /// Operations that the worker is inside: at most one, and a synchronisation around it. Written by the worker's thread
    /// only.
    inside: AtomicUsize,
    begun: Begun,
    state: Mutex<State>,
    /// A cancellation has come or was settled, or the session was aborted.
    changed: Condvar,
}

#[derive(Debug, Default)]
struct State {
    calls: Vec<(u64, Arc<str>)>,
    /// Cancelled calls that this worker has left, until their cancellation is settled.
    unsettled: Vec<u64>,
    /// For each operation that runs beside the worker, the command that has started it.
    beside: Vec<u64>,
    /// The command that has made the communicators.
    data_plane: u64,
}

/// The number of operations that each call has begun. A call is at the place of its number, until a later one takes it.
#[derive(Debug)]
struct Begun([(AtomicU64, AtomicU64); COUNTED_CALLS]);

/// The count of a call that has begun other operations than collectives of all workers.
const OTHER: u64 = u64::MAX;

/// An operation that the worker is inside. A cancellation of its call aborts it.
#[derive(Debug)]
pub(crate) struct Inside<'a> {
    cancelled: &'a Cancelled,
    /// The command of the call, and the operations that the call has begun with this one.
    begins: Option<(u64, CallOps)>,
}

/// An operation that runs beside the worker. A cancellation of the call that has started it aborts it.
#[derive(Debug)]
pub(crate) struct Beside {
    cancelled: Arc<Cancelled>,
    activity: Arc<Activity>,
    command: u64,
}

impl Cancelled {
    fn state(&self) -> MutexGuard<'_, State> {
        sync::lock(&self.state)
    }

    fn note_any(&self, state: &State) {
        self.is_any.store(!state.calls.is_empty() || !state.unsettled.is_empty(), Ordering::SeqCst);
    }

    #[inline]
    fn why(&self, command: u64) -> Option<Arc<str>> {
        // Sequentially consistent with `Link::cancel`, which first sets the mark and then counts the operations: one side
        // sees the other.
        if self.is_any.load(Ordering::SeqCst) { self.state().why(command) } else { None }
    }

    /// The error of an operation of the call with this command, or the cancellation that has ended it. A peer may have learned
    /// of the cancellation first: then this worker learns of it here, and leaves the call if it `runs`.
    fn error_of(&self, command: u64, runs: bool, error: Error) -> Error {
        let (Error::Aborted { cause } | Error::Broken { cause, .. }) = &error else { return error };
        let mut state = self.state();
        let why = match cause {
            AbortCause::Cancelled { command: cancelled, why } if *cancelled == command => {
                if runs {
                    state.leave(command, why);
                    self.note_any(&state);
                    self.begun.add(command, CallOps::Other);
                }
                Some(why.clone())
            }
            _ => state.why(command),
        };
        why.map_or(error, |cause| Error::Cancelled { cause })
    }

    fn enter(&self) {
        self.inside.store(self.inside.load(Ordering::Relaxed) + 1, Ordering::SeqCst);
    }
}

impl State {
    /// Notes that this worker leaves a call that is cancelled.
    fn leave(&mut self, command: u64, why: &Arc<str>) {
        if self.why(command).is_none() {
            self.calls.push((command, why.clone()));
            self.unsettled.push(command);
        }
    }

    #[cold]
    fn why(&self, command: u64) -> Option<Arc<str>> {
        self.calls.iter().find(|call| call.0 == command).map(|call| call.1.clone())
    }
}

impl Begun {
    #[inline]
    fn add(&self, command: u64, ops: CallOps) {
        let (call, count) = &self.0[command as usize % COUNTED_CALLS];
        let before = if call.load(Ordering::Relaxed) == command { count.load(Ordering::Relaxed) } else { 0 };
        let sum = match ops {
            CallOps::Collectives(more) if before != OTHER => before + more,
            _ => OTHER,
        };
        count.store(sum, Ordering::Relaxed);
        call.store(command, Ordering::Relaxed);
    }

    fn of(&self, command: u64) -> CallOps {
        let (call, count) = &self.0[command as usize % COUNTED_CALLS];
        match call.load(Ordering::Relaxed) {
            counted if counted < command => CallOps::Collectives(0),
            counted if counted > command => CallOps::Other,
            _ => Some(count.load(Ordering::Relaxed))
                .filter(|count| *count != OTHER)
                .map_or(CallOps::Other, CallOps::Collectives),
        }
    }
}

impl Default for Begun {
    fn default() -> Self {
        Self(std::array::from_fn(|_| Default::default()))
    }
}

impl Drop for Inside<'_> {
    #[inline]
    fn drop(&mut self) {
        if let Some((command, ops)) = self.begins {
            self.cancelled.begun.add(command, ops);
        }
        // Without a barrier, which would wait until the peers have read what this rank has posted. A cancellation that counts
        // the operation after its end breaks the communicators as if it had come in time; later waits and operations wait
        // for it.
        self.cancelled.inside.store(self.cancelled.inside.load(Ordering::Relaxed) - 1, Ordering::Release);
    }
}

impl Inside<'_> {
    /// The operation was refused: nothing has begun.
    pub(crate) fn withdraw(&mut self) {
        self.begins = None;
    }
}

impl Beside {
    /// The error of the operation, or the cancellation that was its cause.
    pub(crate) fn error(&self, error: Error) -> Error {
        self.cancelled.error_of(self.command, self.command > self.activity.finished(), error)
    }
}

impl Drop for Beside {
    fn drop(&mut self) {
        let mut state = self.cancelled.state();
        if let Some(at) = state.beside.iter().position(|command| *command == self.command) {
            state.beside.swap_remove(at);
        }
    }
}

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
            is_aborted = is_inside || state.beside.contains(&command);
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

    /// Begins an operation beside the worker. The caller has [begun](Link::begin_operation) it.
    pub(crate) fn go_beside(&self) -> Beside {
        let command = self.activity.received();
        self.cancelled.state().beside.push(command);
        Beside { cancelled: self.cancelled.clone(), activity: self.activity.clone(), command }
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
