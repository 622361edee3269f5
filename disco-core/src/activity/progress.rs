//! The state of a worker at a moment, for reports and deadlines.

use std::fmt;
use std::sync::Arc;

use crate::abort_cause::AbortCause;
use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::op::OpKind;

/// A snapshot of an [`Activity`](super::Activity).
#[non_exhaustive]
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Progress {
    /// Number of the last command received.
    pub received: u64,
    /// Number of the last command finished.
    pub finished: u64,
    /// The worker function that the worker is inside.
    pub inside: Option<Arc<str>>,
    /// Whose time limit holds inside it.
    pub limit: TimeLimit,
    /// The latest operations on the worker's communicators, oldest first.
    pub ops: Vec<OpRecord>,
    /// Bytes of large packets that the lane has exchanged with the worker. A lane to a node counts the bytes of all
    /// workers of the node. Only the lane knows this count; a node that relays reports those of its own lane.
    pub moved: u64,
}

impl Progress {
    /// The progress of a worker between two commands, without operations.
    pub fn new(received: u64, finished: u64) -> Self {
        Self { received, finished, ..Self::default() }
    }
}

/// Whose time limit holds while a worker is inside a function.
#[non_exhaustive]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum TimeLimit {
    /// That of calls: [`Deadlines::call`](crate::session::Deadlines::call).
    #[default]
    Call,
    /// Its own: it waits for other workers or for the device, as collectives do.
    Own,
}

/// One operation of a worker's communicators.
#[non_exhaustive]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OpRecord {
    /// Number of the operation among the worker's records, from 1.
    pub number: u32,
    /// Kind of the operation.
    pub kind: OpKind,
    /// Element type.
    pub dtype: Option<DType>,
    /// Number of elements of one block.
    pub count: u64,
    /// State of the operation.
    pub state: OpState,
}

/// State of an operation.
#[non_exhaustive]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OpState {
    /// The worker is inside it: `enqueue` has not returned, or it waits for an operation that it has started.
    Running,
    /// It has ended: `enqueue` returned.
    Done,
    /// It has ended with an error.
    Failed,
    /// `start` has returned, and the operation goes on beside the worker.
    Started,
    /// A cancellation of its call has ended it.
    Cancelled,
    /// It has not begun: its arguments were invalid or in use, or a cancellation had broken the communicator.
    Refused,
}

impl OpState {
    /// All states, in the order of their numbers.
    pub const ALL: [Self; 6] =
        [OpState::Running, OpState::Done, OpState::Failed, OpState::Started, OpState::Cancelled, OpState::Refused];

    /// The name in texts.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Running => "running",
            Self::Done => "done",
            Self::Failed => "failed",
            Self::Started => "started",
            Self::Cancelled => "cancelled",
            Self::Refused => "refused",
        }
    }

    pub(super) const fn of(ok: bool) -> Self {
        if ok { Self::Done } else { Self::Failed }
    }

    /// The state of an operation with this result.
    pub(crate) const fn of_result<T>(result: &Result<T>) -> Self {
        match result {
            Ok(_) => Self::Done,
            Err(Error::Cancelled { .. }) => Self::Cancelled,
            Err(Error::Busy(_) | Error::Invalid(_) | Error::Unsupported { .. }) => Self::Refused,
            Err(Error::Broken { cause: AbortCause::Cancelled { .. }, .. }) => Self::Refused,
            Err(_) => Self::Failed,
        }
    }
}

impl Progress {
    /// The collective or point-to-point operation that the worker is inside. Of a group of operations, this is the first
    /// one in `ops`.
    pub fn collective(&self) -> Option<&OpRecord> {
        let others = self.ops.iter().rev().filter(|op| op.state != OpState::Started);
        others.take_while(|op| op.state == OpState::Running).last()
    }
}

impl fmt::Display for OpRecord {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.kind)?;
        if let Some(dtype) = self.dtype {
            write!(f, " {dtype} x {}", self.count)?;
        }
        write!(f, " (operation {})", self.number)
    }
}

impl fmt::Display for Progress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "finished command {}", self.finished)?;
        if self.received > self.finished {
            write!(f, ", in command {}", self.received)?;
        }
        if let Some(name) = &self.inside {
            write!(f, ", inside `{name}`")?;
        }
        self.collective().map_or(Ok(()), |op| write!(f, ", in {op}"))
    }
}
