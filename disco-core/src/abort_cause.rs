//! Causes of aborts.

use std::fmt;
use std::sync::Arc;

use crate::id::Rank;
use crate::loss::{Loss, LossCause, LostPeer};

/// Why operations were aborted, or why a communicator is broken. A communicator keeps its first cause, and all ranks
/// that share its state get the same one.
#[non_exhaustive]
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AbortCause {
    /// Something has failed; the text says what, and where.
    Failed(Arc<str>),
    /// The controller has cancelled a call.
    Cancelled {
        /// The number of the command that calls.
        command: u64,
        /// The controller's reason, as text.
        why: Arc<str>,
    },
    /// A rank has dropped its communicator while others waited for it.
    Dropped(Rank),
}

impl fmt::Display for AbortCause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Failed(text) => f.write_str(text),
            Self::Cancelled { command, why } => write!(f, "the controller has cancelled command {command}: {why}"),
            Self::Dropped(rank) => Loss::new(LostPeer::Rank(*rank), LossCause::CommunicatorDropped).fmt(f),
        }
    }
}

impl<T: Into<Arc<str>>> From<T> for AbortCause {
    fn from(text: T) -> Self {
        Self::Failed(text.into())
    }
}
