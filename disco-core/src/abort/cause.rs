//! Causes of aborts.

use std::error::Error as StdError;
use std::fmt;
use std::sync::Arc;

use crate::error::{Error, LossCause, LostPeer, chain};
use crate::id::Rank;

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

impl AbortCause {
    /// The cause that an operation with this error is for later operations, and for other ranks.
    pub fn of(error: &Error) -> Self {
        match error {
            Error::Aborted { cause } | Error::Broken { cause, .. } => cause.clone(),
            Error::Lost(loss) => match (&loss.peer, &loss.cause) {
                (LostPeer::Rank(rank), LossCause::CommunicatorDropped) => Self::Dropped(*rank),
                _ => Self::Failed(error.to_string().into()),
            },
            _ => Self::Failed(error.to_string().into()),
        }
    }

    /// The cause if `error` or one of its sources is an abort, or a consequence of the failure of another worker as an
    /// abort is: a worker function that fails drops its communicators, which its peers may notice first.
    pub(crate) fn find(error: &(dyn StdError + 'static)) -> Option<Self> {
        chain(error).find_map(|error| match error.downcast_ref::<Error>()? {
            error @ (Error::Aborted { .. } | Error::Broken { .. }) => Some(Self::of(error)),
            error @ Error::Lost(_) => Some(Self::of(error)).filter(|cause| matches!(cause, Self::Dropped(_))),
            Error::Worker(failure) | Error::Earlier { failure, .. } if failure.aborted => {
                Some(Self::Failed(failure.message.as_str().into()))
            }
            _ => None,
        })
    }
}

impl fmt::Display for AbortCause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Failed(text) => f.write_str(text),
            Self::Cancelled { command, why } => write!(f, "the controller has cancelled command {command}: {why}"),
            Self::Dropped(rank) => Error::peer_lost(LostPeer::Rank(*rank), LossCause::CommunicatorDropped).fmt(f),
        }
    }
}

impl<T: Into<Arc<str>>> From<T> for AbortCause {
    fn from(text: T) -> Self {
        Self::Failed(text.into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, thiserror::Error)]
    #[error("step failed")]
    struct Step(#[source] Error);

    #[test]
    fn an_abort_is_found_below_a_wrapping_error_with_its_cause() {
        let cancelled = AbortCause::Cancelled { command: 4, why: "enough".into() };
        let dropped = Error::peer_lost(LostPeer::Rank(Rank::new(2)), LossCause::CommunicatorDropped);
        let broken = Error::Broken { operation: "barrier".into(), cause: cancelled.clone() };
        let closed = Error::peer_lost(LostPeer::Controller, LossCause::ConnectionClosed);
        for (error, cause) in [
            (Error::Aborted { cause: "worker 1 panicked".into() }, Some("worker 1 panicked".into())),
            (broken, Some(cancelled)),
            (dropped.clone(), Some(AbortCause::Dropped(Rank::new(2)))),
            (closed, None),
            (Error::NoCommunicator, None),
        ] {
            assert_eq!(AbortCause::find(&Step(error)), cause);
        }
        assert_eq!(AbortCause::of(&dropped).to_string(), dropped.to_string());
    }
}
