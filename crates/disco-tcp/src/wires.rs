//! What an operation uses while it runs: the connections of its rank, and what the rank has called.

use std::collections::VecDeque;
use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

use disco_core::error::{LossCause, LostPeer};
use disco_core::{Attendance, Error, Rank, Result};

use crate::alarm::Alarm;
use crate::connect::Links;
use crate::head::Kind;
use crate::link::Link;

/// The operation whose messages an exchange moves.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Call<'a> {
    pub(crate) kind: Kind,
    /// What the rank has called, as text. In a collective, all ranks must call the same.
    pub(crate) text: &'a str,
    /// The number of a collective among those of the communicator.
    pub(crate) number: u64,
}

/// The last collectives of a rank, for errors about ranks that have called another one.
#[derive(Debug, Default)]
pub(crate) struct Calls {
    /// Collectives and splits so far.
    count: u64,
    last: VecDeque<Arc<str>>,
}

impl Calls {
    const MAX_KEPT: usize = 16;

    /// Counts a collective, whose text this is. Returns its number, from 1 on.
    pub(crate) fn add(&mut self, text: Arc<str>) -> u64 {
        if self.last.len() == Self::MAX_KEPT {
            self.last.pop_front();
        }
        self.last.push_back(text);
        self.count += 1;
        self.count
    }

    /// The text of collective `number`; `None` if the rank has not called it yet, or long ago.
    pub(crate) fn text(&self, number: u64) -> Option<&str> {
        let ago = usize::try_from(self.count.checked_sub(number)?).ok()?;
        self.last.get(self.last.len().checked_sub(ago + 1)?).map(|text| &**text)
    }
}

/// The rank's end of all connections while an operation runs.
pub(crate) struct Wires<'a> {
    pub(crate) links: &'a mut Links,
    /// Gets the ranks to which a failure has cut a message in two.
    pub(crate) cut: &'a mut Vec<usize>,
    pub(crate) alarm: &'a Alarm,
    pub(crate) attendance: &'a Attendance,
    pub(crate) calls: &'a Calls,
    pub(crate) rank: usize,
    /// The name of the operation.
    pub(crate) operation: &'static str,
    pub(crate) deadline: Duration,
    pub(crate) start: Instant,
}

impl Wires<'_> {
    /// The connection to a rank.
    ///
    /// # Errors
    /// There is none.
    pub(crate) fn link(&mut self, peer: usize) -> Result<&mut dyn Link> {
        match self.links.get_mut(peer) {
            Some(Some(link)) => Ok(&mut **link),
            _ => Err(Error::state(format!("tcp: rank {} has no connection to rank {peer}", self.rank))),
        }
    }
}

/// The loss of a rank.
pub(crate) fn lost(rank: usize, cause: LossCause) -> Error {
    Error::peer_lost(LostPeer::Rank(Rank::new(rank as u32)), cause)
}

/// The loss of a rank whose machine does not answer any more.
pub(crate) fn unanswered(rank: usize) -> Error {
    lost(rank, LossCause::Other("its machine does not acknowledge what this one sends".to_owned()))
}

/// Whether this is the cause of [`unanswered`].
pub(crate) fn is_unanswered(cause: &LossCause) -> bool {
    matches!(cause, LossCause::Other(_))
}

/// The loss of a rank whose connection has failed.
pub(crate) fn disconnected(rank: usize, error: &io::Error) -> Error {
    lost(
        rank,
        match error.kind() {
            io::ErrorKind::UnexpectedEof => LossCause::ConnectionClosed,
            _ => LossCause::ConnectionFailed(error.to_string()),
        },
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_calls_are_found_by_their_numbers() {
        let mut calls = Calls::default();
        assert_eq!(calls.text(0), None);
        let last = 2 * Calls::MAX_KEPT as u64;
        for number in 1..=last {
            assert_eq!(calls.add(number.to_string().into()), number);
        }
        let oldest = last - Calls::MAX_KEPT as u64 + 1;
        let found = [oldest - 1, oldest, last, last + 1].map(|number| calls.text(number));
        assert_eq!(found, [None, Some(&*oldest.to_string()), Some(&*last.to_string()), None]);
    }
}
