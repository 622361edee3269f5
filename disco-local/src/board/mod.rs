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

mod bell;
mod letters;
#[cfg(all(test, loom))]
mod loom_models;
mod pieces;
mod presence;
mod record;
mod sheets;
#[cfg(not(loom))]
mod staging;
mod text;
mod words;

#[cfg(any(test, not(loom)))]
pub(crate) use letters::SLOTS;
#[cfg(not(loom))]
pub(crate) use letters::{ENCLOSED, Letter};
#[cfg(not(loom))]
pub(crate) use pieces::Piece;
#[cfg(not(loom))]
pub(crate) use presence::Presence;
#[cfg(any(test, not(loom)))]
pub(crate) use record::Record;
#[cfg(any(test, not(loom)))]
pub(crate) use sheets::Head;
#[cfg(not(loom))]
pub(crate) use sheets::INLINE;
pub(crate) use sheets::words;

use crate::sync::{AtomicU64, Ordering, fence};
use words::Words;

/// Words on two cache lines, which processors fetch in pairs.
const LINE: usize = if cfg!(loom) { 2 } else { 16 };

/// Lines of their own, by first word.
const SIZE: usize = 0;
const FAILED: usize = LINE;
const ALARM: usize = LINE + 1;
const BELL: usize = 2 * LINE;
const SLEEPERS: usize = 3 * LINE;
const RECORD: usize = 4 * LINE;
const PLACES: usize = RECORD + record::WORDS;

/// Within a place.
const STEPS: usize = 2 * sheets::SHEET;
const TOUCHING: usize = STEPS + LINE;
const TRACE: usize = TOUCHING + LINE;
const PRESENCE: usize = TRACE + 2 * LINE;
const PROCESS: usize = PRESENCE + LINE;
const SIDE: usize = PROCESS + LINE;
const ROWS: usize = SIDE + text::SIDE;

/// The words that the ranks of one group share.
pub(crate) struct Board {
    words: Words,
    size: usize,
}

impl Board {
    /// For `size` ranks that are threads of this process.
    pub(crate) fn new(size: usize) -> Self {
        Self { words: Words::heap(count(size)), size }
    }

    /// Number of ranks.
    pub(crate) fn size(&self) -> usize {
        self.size
    }

    /// `rank` wants to touch published memory. If this is true it may, until [`Board::let_go`].
    pub(crate) fn touch(&self, rank: usize) -> bool {
        let touching = self.at(rank, TOUCHING);
        touching.store(1, Ordering::Relaxed);
        fence(Ordering::SeqCst);
        let may = !self.has_failed();
        if !may {
            touching.store(0, Ordering::Release);
        }
        may
    }

    /// `rank` touches nothing any more.
    pub(crate) fn let_go(&self, rank: usize) {
        self.at(rank, TOUCHING).store(0, Ordering::Release);
    }

    /// From now on nobody starts to touch anything.
    fn forbid(&self) {
        self.word(FAILED).store(1, Ordering::Relaxed);
        fence(Ordering::SeqCst);
    }

    /// Whether something failed.
    pub(crate) fn has_failed(&self) -> bool {
        self.word(FAILED).load(Ordering::Relaxed) != 0
    }

    /// Whether `rank` may be touching published memory. Once all have been seen not to after a failure, nobody will.
    pub(crate) fn is_touching(&self, rank: usize) -> bool {
        self.at(rank, TOUCHING).load(Ordering::Acquire) != 0
    }

    /// Whoever waits has to look what has failed, or who is gone.
    pub(crate) fn is_alarmed(&self) -> bool {
        self.word(ALARM).load(Ordering::Relaxed) != 0
    }

    /// Has everybody look who waits.
    fn alarm(&self) {
        self.word(ALARM).store(1, Ordering::Relaxed);
        self.awake();
    }

    /// Words that `rank` writes about what it is doing.
    pub(crate) fn trace(&self, rank: usize) -> &[AtomicU64] {
        self.span(place(self.size, rank) + TRACE, LINE)
    }

    fn at(&self, rank: usize, offset: usize) -> &AtomicU64 {
        self.word(place(self.size, rank) + offset)
    }

    fn word(&self, index: usize) -> &AtomicU64 {
        &self.words.all()[index]
    }

    fn span(&self, start: usize, words: usize) -> &[AtomicU64] {
        &self.words.all()[start..start + words]
    }
}

/// Words of a board for so many ranks.
fn count(size: usize) -> usize {
    place(size, size) + size * size * letters::PAIR
}

/// The first word of a rank's place.
fn place(size: usize, rank: usize) -> usize {
    PLACES + rank * (ROWS + 2 * sheets::row(size))
}

/// The first word of a pair's letters.
fn pair(size: usize, from: usize, to: usize) -> usize {
    place(size, size) + (from * size + to) * letters::PAIR
}

/// So many words on lines of their own.
const fn lines(words: usize) -> usize {
    words.next_multiple_of(LINE)
}
