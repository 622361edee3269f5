//! Epochs and their aborts: the one rule that a worker, the store and each remote lane follow.

use std::sync::Arc;

/// The epoch that something is in, and the abort that was signalled in it or ahead of it.
///
/// An **epoch** is the time between two recoveries of a session. An abort of an epoch that is over does nothing, so that a
/// late one can't break what was made after recovery. An abort of a later epoch is kept: it may overtake the command that
/// begins this epoch.
#[derive(Clone, Debug, Default)]
pub struct Epoch {
    number: u64,
    aborted: Option<(u64, Arc<str>)>,
}

impl Epoch {
    /// The number of the epoch.
    pub fn number(&self) -> u64 {
        self.number
    }

    /// Why the epoch, or a later one, was aborted.
    pub fn cause(&self) -> Option<&Arc<str>> {
        self.aborted.as_ref().map(|(_, cause)| cause)
    }

    /// Begins an epoch and forgets the aborts of earlier ones. False: `number` is not later than the current epoch.
    pub fn begin(&mut self, number: u64) -> bool {
        let is_new = number > self.number;
        if is_new {
            self.number = number;
            self.aborted.take_if(|(of, _)| *of < number);
        }
        is_new
    }

    /// Aborts an epoch. False: `number` is over, or an abort of the same or a later epoch is known.
    pub fn abort(&mut self, number: u64, cause: &Arc<str>) -> bool {
        let is_news = number >= self.number && self.aborted.as_ref().is_none_or(|(known, _)| *known < number);
        if is_news {
            self.aborted = Some((number, cause.clone()));
        }
        is_news
    }
}
