//! The failure of a communicator, and the error of each rank.

use disco_core::error::{LossCause, LostPeer};
use disco_core::{AbortCause, Error, Rank};

use crate::board::Record;

/// The failure of a communicator, in the form that all ranks read.
pub(crate) struct Failure {
    error: Error,
    /// The ranks that return the error itself; other ranks return [`Error::Aborted`] with its text. None means all
    /// ranks.
    involved: Option<[usize; 2]>,
}

/// Kinds of errors on the board. The number is that of the cancelled command, or of the lost rank.
const ABORTED: u64 = 1;
const CANCELLED: u64 = 2;
const DROPPED: u64 = 3;
const LOST: u64 = 4;
const MISMATCH: u64 = 5;
/// Errors of other kinds, as text.
const OTHER: u64 = 6;
/// Errors that consist of a text: this, plus the variant of [`Error::as_text`].
const TEXT: u64 = 16;

impl Failure {
    /// An abort from outside.
    pub(crate) fn abort(cause: &AbortCause) -> Self {
        Self::for_all(Error::Aborted { cause: cause.clone() })
    }

    /// Ranks wait for `rank`, which has dropped its communicator.
    pub(crate) fn lost(rank: usize) -> Self {
        let peer = LostPeer::Rank(Rank::new(rank as u32));
        Self::for_all(Error::peer_lost(peer, LossCause::CommunicatorDropped))
    }

    /// A failure whose error all ranks return.
    pub(crate) fn for_all(error: Error) -> Self {
        Self { error, involved: None }
    }

    /// A failure whose error ranks `a` and `b` return; the other ranks are aborted.
    pub(crate) fn between(a: usize, b: usize, error: Error) -> Self {
        Self { error, involved: Some([a, b]) }
    }

    /// A failure of `rank`, which returns `error` itself; the other ranks are aborted.
    pub(crate) fn of(rank: usize, error: &Error) -> Self {
        match AbortCause::of(error) {
            AbortCause::Failed(_) => Self::abort(&format!("rank {rank}: {error}").into()),
            cause => Self::abort(&cause),
        }
    }

    /// The error of `rank`, which was inside an operation when the failure happened.
    pub(crate) fn error_for(self, rank: usize) -> Error {
        if self.involved.is_none_or(|involved| involved.contains(&rank)) {
            self.error
        } else {
            Error::Aborted { cause: self.cause() }
        }
    }

    /// The error of an `operation` that is called after the failure.
    pub(crate) fn broken(self, operation: String) -> Error {
        Error::Broken { operation, cause: self.cause() }
    }

    fn cause(&self) -> AbortCause {
        AbortCause::of(&self.error)
    }

    /// The record of the failure, for the board.
    pub(crate) fn to_record(&self) -> Record {
        let (kind, number, texts) = match &self.error {
            Error::Aborted { cause: AbortCause::Cancelled { command, why } } => {
                (CANCELLED, *command, [why.to_string(), String::new()])
            }
            Error::Aborted { cause: AbortCause::Dropped(rank) } => (DROPPED, rank.index() as u64, Default::default()),
            Error::Aborted { cause } => (ABORTED, 0, [cause.to_string(), String::new()]),
            Error::Lost(loss) => match loss.peer {
                LostPeer::Rank(rank) => (LOST, rank.index() as u64, Default::default()),
                _ => plain(&self.error),
            },
            Error::Mismatch { operation, detail } => (MISMATCH, 0, [operation.clone(), detail.clone()]),
            other => plain(other),
        };
        Record { kind, involved: self.involved, number, texts }
    }

    /// The failure of a record of the board. `record` is none if the failed rank ended before it had written one.
    pub(crate) fn from_record(record: Option<Record>) -> Self {
        let unknown = || {
            Self::for_all(Error::state(
                "the communicator failed, and the rank that failed ended before it recorded the cause",
            ))
        };
        record.map_or_else(unknown, |Record { kind, involved, number, texts: [first, second] }| {
            let aborted = |cause| Error::Aborted { cause };
            let error = match kind {
                ABORTED => aborted(first.into()),
                CANCELLED => aborted(AbortCause::Cancelled { command: number, why: first.into() }),
                DROPPED => aborted(AbortCause::Dropped(Rank::new(number as u32))),
                LOST => Error::peer_lost(LostPeer::Rank(Rank::new(number as u32)), LossCause::CommunicatorDropped),
                MISMATCH => Error::Mismatch { operation: first, detail: second },
                other => {
                    let variant = other.checked_sub(TEXT).and_then(|variant| u8::try_from(variant).ok());
                    let error = variant.and_then(|variant| Error::from_text(variant, first.clone()));
                    error.unwrap_or(Error::State(first))
                }
            };
            Self { error, involved }
        })
    }
}

/// The kind, the number and the texts of an error that the board keeps as text only.
fn plain(error: &Error) -> (u64, u64, [String; 2]) {
    let kind = error.as_text().map_or(OTHER, |(variant, _)| TEXT + u64::from(variant));
    (kind, 0, [error.to_string(), String::new()])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failure_read_from_the_board_gives_the_same_errors() {
        let mismatch = || Error::Mismatch { operation: "barrier".into(), detail: "a, b".into() };
        let failures = || {
            let failures = [Failure::abort(&"why".into()), Failure::lost(3), Failure::between(0, 2, mismatch())];
            failures.into_iter().chain([Failure::for_all(Error::invalid("x")), Failure::of(1, &mismatch())])
        };
        for (failure, same) in failures().zip(failures()) {
            let read = |failure: &Failure| Failure::from_record(Some(failure.to_record()));
            for rank in 0..3 {
                assert_eq!(read(&failure).error_for(rank).to_string(), read(&same).error_for(rank).to_string());
            }
            assert_eq!(read(&failure).broken("op".into()).to_string(), same.broken("op".into()).to_string());
        }
        let told = [0, 1, 2].map(|rank| Failure::between(0, 2, mismatch()).error_for(rank).to_string());
        let text = "barrier: ranks disagree: a, b";
        assert_eq!(told, [text, "aborted, because barrier: ranks disagree: a, b", text]);
    }
}
