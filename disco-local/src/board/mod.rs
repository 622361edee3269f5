//! What ranks show each other, without a lock: words that threads of one process have in a block of its memory, and
//! processes in a segment that each of them maps.
//!
//! ```text
//! lines of 16 words
//!   size                    written before anybody else sees it, in a segment
//!   failed │ alarm          nobody starts to touch memory │ something failed, or a rank is gone
//!   bell                    a futex, on which all sleep who wait
//!   sleepers                how many
//!   record                  what broke the group; the first who fails writes it, `record` draws it
//! then the place of each rank, written by it alone:
//!   sheets[0], [1]          its part in collective `number`, on sheet `number % 2`:
//!                           number │ signature │ count │ words: up to INLINE bytes, or where memory is
//!   steps                   points inside collectives that it has come to, over its life
//!   touching                whether it may be touching published memory now
//!   trace                   what it is doing, for reports
//!   presence │ arena        whether it can be waited for │ the name of its tensors' segment, + 1
//!   process                 id, start time and namespaces of its process, in a segment
//!   side                    what it called, once it has seen that others called something else
//!   rows[0], [1]            counts by rank, for the V-forms
//! then for each pair, from × to:
//!   posted │ seen           letters sent, and how many of them the sender knows to be taken
//!   taken                   letters that the receiver has copied
//!   slots                   the last SLOTS letters: number │ words │ a small tensor itself
//! in a segment, from a page boundary on: the staging area of each rank
//! ```
//!
//! A sheet's number is written last and read first, so whoever sees it sees the sheet. Sheets need no lock
//! and no second handshake: a rank writes sheet `number % 2` again for `number + 2`, when all have posted `number + 1`,
//! which they do after they have read `number`. All words are atomic, so that a rank that does not keep to this, say in
//! another process, can confuse but not corrupt. Texts and codes are copied out once, then checked.
//!
//! Two handshakes are after Dekker: each side stores, fences, looks, and one of them sees the other.
//!
//! - `touching` and `failed`: a rank says that it touches, then looks for a failure; a rank that leaves after a failure makes
//!   it known, then looks for who touches.
//! - `sleepers` and all that ranks wait for: a rank that lies down reads the bell, counts itself, then looks a last time, and
//!   sleeps while the bell is as it was; whoever changes something looks for sleepers afterwards, and rings.

mod futex;
#[cfg(all(test, loom))]
mod loom_models;
mod memory;
mod messages;
mod pieces;
mod posts;
mod presence;
mod record;
#[cfg(not(loom))]
mod staging;
mod text;

#[cfg(any(test, not(loom)))]
pub(crate) use messages::MAX_IN_FLIGHT;
#[cfg(not(loom))]
pub(crate) use messages::{MAX_INLINE_BYTES, MessageHeader};
#[cfg(not(loom))]
pub(crate) use pieces::Piece;
#[cfg(any(test, not(loom)))]
pub(crate) use posts::Head;
#[cfg(not(loom))]
pub(crate) use posts::MAX_POST_BYTES;
pub(crate) use posts::to_words;
#[cfg(not(loom))]
pub(crate) use presence::Presence;
#[cfg(any(test, not(loom)))]
pub(crate) use record::Record;

use crate::sync::{AtomicU64, Ordering, fence};
use memory::BoardMemory;

/// Words on two cache lines, which processors fetch in pairs.
const LINE_WORDS: usize = if cfg!(loom) { 2 } else { 16 };

/// Lines of their own, by first word.
const SIZE: usize = 0;
const FAILED: usize = LINE_WORDS;
const ALARM: usize = LINE_WORDS + 1;
const FUTEX: usize = 2 * LINE_WORDS;
const SLEEPERS: usize = 3 * LINE_WORDS;
const RECORD: usize = 4 * LINE_WORDS;
const RANK_AREAS: usize = RECORD + record::WORDS;

/// Within a place.
const STEPS: usize = 2 * posts::POST_WORDS;
const ACCESSING: usize = STEPS + LINE_WORDS;
const TRACE: usize = ACCESSING + LINE_WORDS;
const PRESENCE: usize = TRACE + 2 * LINE_WORDS;
const PROCESS: usize = PRESENCE + LINE_WORDS;
const CALL_TEXT: usize = PROCESS + LINE_WORDS;
const ROWS: usize = CALL_TEXT + text::CALL_TEXT;

/// The words that the ranks of one group share.
pub(crate) struct Board {
    memory: BoardMemory,
    size: usize,
}

impl Board {
    /// For `size` ranks that are threads of this process.
    pub(crate) fn new(size: usize) -> Self {
        Self { memory: BoardMemory::heap(count(size)), size }
    }

    /// Number of ranks.
    pub(crate) fn size(&self) -> usize {
        self.size
    }

    /// `rank` wants to touch published memory. If this is true it may, until [`Board::let_go`].
    pub(crate) fn begin_access(&self, rank: usize) -> bool {
        let accessing = self.at(rank, ACCESSING);
        accessing.store(1, Ordering::Relaxed);
        fence(Ordering::SeqCst);
        let may = !self.has_failed();
        if !may {
            accessing.store(0, Ordering::Release);
        }
        may
    }

    /// `rank` touches nothing any more.
    pub(crate) fn end_access(&self, rank: usize) {
        self.at(rank, ACCESSING).store(0, Ordering::Release);
    }

    /// From now on nobody starts to touch anything.
    fn forbid_access(&self) {
        self.word(FAILED).store(1, Ordering::Relaxed);
        fence(Ordering::SeqCst);
    }

    /// Whether something failed.
    pub(crate) fn has_failed(&self) -> bool {
        self.word(FAILED).load(Ordering::Relaxed) != 0
    }

    /// Whether `rank` may be touching published memory. Once all have been seen not to after a failure, nobody will.
    pub(crate) fn is_accessing(&self, rank: usize) -> bool {
        self.at(rank, ACCESSING).load(Ordering::Acquire) != 0
    }

    /// Whoever waits has to look what has failed, or who is gone.
    pub(crate) fn is_alarmed(&self) -> bool {
        self.word(ALARM).load(Ordering::Relaxed) != 0
    }

    /// Has everybody look who waits.
    fn alarm(&self) {
        self.word(ALARM).store(1, Ordering::Relaxed);
        self.wake_sleepers();
    }

    /// Words that `rank` writes about what it is doing.
    pub(crate) fn trace(&self, rank: usize) -> &[AtomicU64] {
        self.span(rank_area(self.size, rank) + TRACE, LINE_WORDS)
    }

    fn at(&self, rank: usize, offset: usize) -> &AtomicU64 {
        self.word(rank_area(self.size, rank) + offset)
    }

    fn word(&self, index: usize) -> &AtomicU64 {
        &self.memory.all()[index]
    }

    fn span(&self, start: usize, words: usize) -> &[AtomicU64] {
        &self.memory.all()[start..start + words]
    }
}

/// Words of a board for so many ranks.
fn count(size: usize) -> usize {
    rank_area(size, size) + size * size * messages::PAIR_WORDS
}

/// The first word of a rank's place.
fn rank_area(size: usize, rank: usize) -> usize {
    RANK_AREAS + rank * (ROWS + 2 * posts::row(size))
}

/// The first word of a pair's letters.
fn pair(size: usize, from: usize, to: usize) -> usize {
    rank_area(size, size) + (from * size + to) * messages::PAIR_WORDS
}

/// So many words on lines of their own.
const fn lines(words: usize) -> usize {
    words.next_multiple_of(LINE_WORDS)
}
