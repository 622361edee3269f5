//! What lanes carry besides frames.

use std::fmt;
use std::sync::Arc;

use crate::error::{Failure, Result};
use crate::value::Value;

/// What a command that wants a reply gets from a worker: a value ([`Value::None`] for a sync), or the first failure.
pub type Reply = Result<Value, Arc<Failure>>;

/// A message to workers that does not queue behind commands.
#[non_exhaustive]
#[derive(Clone, Debug)]
pub enum Signal {
    /// Something failed: whoever waits on peers returns [`Error::Aborted`](crate::Error::Aborted).
    Abort {
        /// The session's epoch; workers beyond it ignore the signal.
        epoch: u64,
        /// The first failure, as text.
        cause: Arc<str>,
    },
    /// Leave the loop at the next opportunity, whatever is still queued.
    Shutdown,
}

/// A message to the controller that nobody asked for.
#[non_exhaustive]
#[derive(Clone, Debug)]
pub enum Notice {
    /// A worker met its first error of this epoch, and is poisoned.
    Failed {
        /// The worker's epoch.
        epoch: u64,
        /// What failed.
        failure: Arc<Failure>,
    },
}

impl fmt::Display for Notice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Notice::Failed { failure, .. } => write!(f, "failed: {failure}"),
        }
    }
}
