//! Messages of lanes besides frames: replies, signals, notices.

use std::fmt;
use std::sync::Arc;

use crate::error::{Failure, Result};
use crate::id::WorkerId;
use crate::value::Value;
use crate::worker_range::WorkerRange;

/// A worker's reply to a command: a value ([`Value::None`] for a sync), or the worker's first failure.
pub type Reply = Result<Value, Arc<Failure>>;

/// A message to workers that overtakes queued commands.
#[non_exhaustive]
#[derive(Clone, Debug)]
pub enum Signal {
    /// A worker failed or the session ended: operations that wait for peers return
    /// [`Error::Aborted`](crate::Error::Aborted).
    Abort {
        /// The session's epoch; workers beyond it ignore the signal.
        epoch: u64,
        /// The first failure, as text.
        cause: Arc<str>,
    },
    /// End a call: [`WorkerContext::cancelled`](crate::WorkerContext::cancelled) is true in it, its operations of
    /// communicators fail, and a worker that has not begun it leaves it out. Each worker answers with
    /// [`Notice::Cancelled`].
    Cancel {
        /// The number of the command that calls.
        command: u64,
        /// The cause, as text.
        cause: Arc<str>,
    },
    /// All workers have answered a cancellation: workers that have left the call go on to operations of later calls.
    Settle {
        /// The number of the cancelled command.
        command: u64,
        /// Set if ranks have begun different operations in the call, and some have left it: the cause with which their
        /// communicators are broken.
        breaks: Option<Arc<str>>,
    },
    /// The controller has taken results of a call that streams, and the worker may [emit](crate::WorkerContext::emit) more.
    Taken {
        /// The place of the worker.
        worker: WorkerId,
        /// The number of the command that calls.
        command: u64,
        /// The number of results of this worker that were taken so far.
        count: u64,
    },
    /// A node starts new workers in the places of these lost ones, which were processes of it. They join as a node of their own,
    /// at one of these addresses. For nodes only.
    Replace {
        /// The places of the workers, all of one node.
        workers: WorkerRange,
        /// The addresses at which their lane listens, each as `HOST:PORT`.
        addresses: Vec<String>,
    },
    /// Leave the loop after the current command; queued commands are dropped.
    Shutdown,
    /// The lane passes a copy of each worker's recording to its inbox, also of workers that hang.
    Collect {
        /// Number of records of each worker: its last ones.
        last: usize,
    },
}

/// A message to the controller that answers no command.
#[non_exhaustive]
#[derive(Clone, Debug)]
pub enum Notice {
    /// The worker's first error of this epoch. The worker is poisoned until recovery.
    Failed {
        /// The worker's epoch.
        epoch: u64,
        /// The failure.
        failure: Arc<Failure>,
    },
    /// The answer to [`Signal::Cancel`].
    Cancelled {
        /// The number of the cancelled command.
        command: u64,
        /// Whether the worker leaves the call out, or was inside: it begins no operation in it from now on.
        has_left: bool,
        /// The operations that the call has begun on this worker.
        ops: CallOps,
    },
    /// A result that the worker has [emitted](crate::WorkerContext::emit) in a call that streams.
    Result {
        /// The number of the command that calls.
        command: u64,
        /// Number of the results of this worker before it. A lane may deliver a small one before a large one.
        number: u64,
        /// The value, encoded by [`encode_value`](crate::wire::encode_value).
        value: Arc<[u8]>,
    },
    /// The worker has executed a call that streams, or left it out.
    ResultsEnd {
        /// The number of the command that calls.
        command: u64,
        /// Number of the results of this worker.
        count: u64,
        /// The failure of the call.
        outcome: Result<(), Arc<Failure>>,
    },
}

/// The operations of communicators that a call has begun on one worker.
#[expect(clippy::exhaustive_enums, reason = "another variant is another version of the protocol")]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CallOps {
    /// This number of collectives of the communicator of all workers, which have ended.
    Collectives(u64),
    /// Other operations, or some that were aborted, or operations that were not counted.
    Other,
}

impl fmt::Display for Notice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Notice::Failed { failure, .. } => write!(f, "failed: {failure}"),
            Notice::Cancelled { command, .. } => write!(f, "has answered the cancellation of command {command}"),
            Notice::Result { command, number, value } => {
                write!(f, "result {number} of command {command} with {} bytes", value.len())
            }
            Notice::ResultsEnd { command, outcome, .. } => {
                write!(f, "the end of the results of command {command}")?;
                outcome.as_ref().map_or_else(|failure| write!(f, ": {failure}"), |()| Ok(()))
            }
        }
    }
}
