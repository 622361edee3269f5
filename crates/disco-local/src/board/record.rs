//! The record of the group's failure, written by the first rank that fails.

use super::text::{self, TEXT};
use super::{ALARM, Board, RECORD, lines};
use crate::sync::{AtomicU64, Ordering};

/// Words of a record: state │ kind │ two involved ranks, + 1 │ number │ two texts.
pub(super) const WORDS: usize = lines(FIRST + 2 * TEXT);
const STATE: usize = 0;
const KIND: usize = 1;
const INVOLVED: usize = 2;
const NUMBER: usize = 4;
const FIRST: usize = 5;

const FREE: u64 = 0;
const TAKEN: u64 = 1;
const WRITTEN: u64 = 2;

/// A failure in the form that the board stores.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Record {
    pub(crate) kind: u64,
    /// The ranks that return the error itself; none means all ranks.
    pub(crate) involved: Option<[usize; 2]>,
    /// The number that belongs to the kind.
    pub(crate) number: u64,
    pub(crate) texts: [String; 2],
}

impl Board {
    /// Breaks the group unless it is broken: no rank starts to access memory, and waiting ranks wake up. Returns
    /// whether this failure is the one that broke it.
    pub(crate) fn fail(&self, record: &Record) -> bool {
        let words = self.record_words();
        let is_first = words[STATE].compare_exchange(FREE, TAKEN, Ordering::AcqRel, Ordering::Relaxed).is_ok();
        if is_first {
            let involved_rank = |index: usize| record.involved.map_or(0, |involved| involved[index] as u64 + 1);
            words[KIND].store(record.kind, Ordering::Relaxed);
            words[INVOLVED].store(involved_rank(0), Ordering::Relaxed);
            words[INVOLVED + 1].store(involved_rank(1), Ordering::Relaxed);
            words[NUMBER].store(record.number, Ordering::Relaxed);
            for (text, words) in record.texts.iter().zip(words[FIRST..].chunks_exact(TEXT)) {
                text::write(words, text);
            }
            words[STATE].store(WRITTEN, Ordering::Release);
        }
        // Later failures set the flags too: the first rank may be delayed before it gets here.
        self.forbid_access();
        self.word(ALARM).store(1, Ordering::Relaxed);
        self.wake_sleepers();
        is_first
    }

    /// The failure of the group, once its record is complete.
    pub(crate) fn record(&self) -> Option<Record> {
        let words = self.record_words();
        if words[STATE].load(Ordering::Acquire) != WRITTEN {
            return None;
        }
        let load = |index: usize| words[index].load(Ordering::Relaxed);
        let involved_rank = |index: usize| load(INVOLVED + index).checked_sub(1).map(|rank| rank as usize);
        let mut texts = words[FIRST..].chunks_exact(TEXT).map(|words| text::read(words).unwrap_or_default());
        Some(Record {
            kind: load(KIND),
            involved: involved_rank(0).zip(involved_rank(1)).map(|(a, b)| [a, b]),
            number: load(NUMBER),
            texts: std::array::from_fn(|_| texts.next().unwrap_or_default()),
        })
    }

    fn record_words(&self) -> &[AtomicU64] {
        self.span(RECORD, WORDS)
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn the_first_failure_is_recorded_and_later_ones_are_ignored() {
        let board = Board::new(2);
        assert!(board.record().is_none() && !board.has_failed());
        let record =
            |text: &str| Record { kind: 3, involved: Some([1, 0]), number: 5, texts: [text.into(), "b".into()] };
        assert!(board.fail(&record("first")));
        assert!(!board.fail(&record("second")));
        assert!(board.has_failed() && board.is_alarmed() && !board.begin_access(0));
        assert_eq!(board.record(), Some(record("first")));
    }
}
