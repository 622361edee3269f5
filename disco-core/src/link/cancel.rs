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

use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};

use crate::abort_cause::AbortCause;
use crate::activity::Activity;
use crate::error::Error;
use crate::signal::CallOps;
use crate::sync;

/// Number of calls of which the operations are counted: the last ones that have begun operations.
pub(super) const COUNTED_CALLS: usize = 64;

/// The cancelled calls of one worker, by the numbers of their commands, and the operations that run.
#[derive(Debug, Default)]
pub(super) struct Cancelled {
    /// Whether there are cancelled calls, or cancellations that are not settled; read without the lock.
    pub(super) is_any: AtomicBool,
    /// Operations that the worker is inside: at most one, and a synchronisation around it. Written by the worker's thread
    /// only.
    pub(super) inside: AtomicUsize,
    pub(super) begun: Begun,
    state: Mutex<State>,
    /// A cancellation has come or was settled, or the session was aborted.
    pub(super) changed: Condvar,
}

#[derive(Debug, Default)]
pub(super) struct State {
    pub(super) calls: Vec<(u64, Arc<str>)>,
    /// Cancelled calls that this worker has left, until their cancellation is settled.
    pub(super) unsettled: Vec<u64>,
    /// For each operation that runs in the background, the command that has started it.
    pub(super) background: Vec<u64>,
    /// The command that has made the communicators.
    pub(super) data_plane: u64,
}

/// The number of operations that each call has begun. A call is at the place of its number, until a later one takes it.
#[derive(Debug)]
pub(super) struct Begun([(AtomicU64, AtomicU64); COUNTED_CALLS]);

/// The count of a call that has begun other operations than collectives of all workers.
const OTHER: u64 = u64::MAX;

/// An operation that the worker is inside. A cancellation of its call aborts it.
#[derive(Debug)]
pub(crate) struct Inside<'a> {
    pub(super) cancelled: &'a Cancelled,
    /// The command of the call, and the operations that the call has begun with this one.
    pub(super) begins: Option<(u64, CallOps)>,
}

/// An operation that runs in the background. A cancellation of the call that has started it aborts it.
#[derive(Debug)]
pub(crate) struct InBackground {
    pub(super) cancelled: Arc<Cancelled>,
    pub(super) activity: Arc<Activity>,
    pub(super) command: u64,
}

impl Cancelled {
    pub(super) fn state(&self) -> MutexGuard<'_, State> {
        sync::lock(&self.state)
    }

    pub(super) fn note_any(&self, state: &State) {
        self.is_any.store(!state.calls.is_empty() || !state.unsettled.is_empty(), Ordering::SeqCst);
    }

    #[inline]
    pub(super) fn why(&self, command: u64) -> Option<Arc<str>> {
        // Sequentially consistent with `Link::cancel`, which first sets the mark and then counts the operations: one side
        // sees the other.
        if self.is_any.load(Ordering::SeqCst) { self.state().why(command) } else { None }
    }

    /// The error of an operation of the call with this command, or the cancellation that has ended it. A peer may have learned
    /// of the cancellation first: then this worker learns of it here, and leaves the call if it `runs`.
    pub(super) fn error_of(&self, command: u64, runs: bool, error: Error) -> Error {
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

    pub(super) fn enter(&self) {
        self.inside.store(self.inside.load(Ordering::Relaxed) + 1, Ordering::SeqCst);
    }
}

impl State {
    /// Notes that this worker leaves a call that is cancelled.
    pub(super) fn leave(&mut self, command: u64, why: &Arc<str>) {
        if self.why(command).is_none() {
            self.calls.push((command, why.clone()));
            self.unsettled.push(command);
        }
    }

    #[cold]
    pub(super) fn why(&self, command: u64) -> Option<Arc<str>> {
        self.calls.iter().find(|call| call.0 == command).map(|call| call.1.clone())
    }
}

impl Begun {
    #[inline]
    pub(super) fn add(&self, command: u64, ops: CallOps) {
        let (call, count) = &self.0[command as usize % COUNTED_CALLS];
        let before = if call.load(Ordering::Relaxed) == command { count.load(Ordering::Relaxed) } else { 0 };
        let sum = match ops {
            CallOps::Collectives(more) if before != OTHER => before + more,
            _ => OTHER,
        };
        count.store(sum, Ordering::Relaxed);
        call.store(command, Ordering::Relaxed);
    }

    pub(super) fn of(&self, command: u64) -> CallOps {
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

impl InBackground {
    /// The error of the operation, or the cancellation that was its cause.
    pub(crate) fn error(&self, error: Error) -> Error {
        self.cancelled.error_of(self.command, self.command > self.activity.finished(), error)
    }
}

impl Drop for InBackground {
    fn drop(&mut self) {
        let mut state = self.cancelled.state();
        if let Some(at) = state.background.iter().position(|command| *command == self.command) {
            state.background.swap_remove(at);
        }
    }
}
