//! The lock-free shared memory of a group. Among threads the board is a block of heap memory; among processes it is a
//! segment that each process maps.
//!
//! ```text
//! lines of 16 words
//!   size │ tensor bytes     the number of ranks │ the most bytes of a posted tensor; in a segment, written before the
//!                           segment is shared
//!   failed │ alarm          no rank may start to access memory │ the group has failed, or a rank has left
//!   futex                   the word on which waiting ranks sleep
//!   sleepers                the number of sleeping ranks
//!   record                  the failure of the group, written by the first rank that fails (drawn in `record`)
//! then an area for each rank, written by that rank only:
//!   posts[0], [1]           the rank's post for collective `number`, in slot `number % 2`:
//!                           number │ signature │ count │ data of up to MAX_POST_BYTES, or locations of tensors
//!   steps                   synchronisations inside collectives that the rank has reached, over its life
//!   accessing               whether the rank may be accessing published memory now
//!   trace                   the rank's current operation, for error texts
//!   presence │ arena        the state of its connection │ the name of its arena's segment, + 1
//!   process │ processor     id, start time and namespaces of its process, in a segment │ the processor that the rank was
//!                           last seen on, + 1, if ranks take turns
//!   call text               the rank's call, written once it has seen that ranks call different operations
//!   rows[0], [1]            counts by rank, for the V-forms
//! then for each pair, from × to:
//!   posted │ seen           messages sent │ the acknowledgements that the sender has read
//!   taken                   messages that the receiver has acknowledged
//!   slots                   the last MAX_IN_FLIGHT messages: number │ header │ inline data of a small tensor
//! then for each rank:
//!   tensors[0], [1]         the tensor that the rank posts for collective `number`, in area `number % 2`
//! in a segment, from a page boundary on: the staging area of each rank
//! ```
//!
//! **Posts** are double-buffered. The number of a post is stored last, with release ordering, and loaded first, with
//! acquire ordering. A rank reuses slot `number % 2` for post `number + 2`. It does so after all ranks have posted
//! `number + 1`, and each rank posts `number + 1` after it has read all posts `number`. So posts need no lock and no
//! further synchronisation. Posted tensors follow the same rule.
//!
//! **Untrusted peers.** All words are atomic, so a misbehaving process can cause wrong values but no data race. Texts
//! and codes are copied once and then checked.
//!
//! **Two handshakes** follow Dekker's algorithm: each side stores its flag, executes a sequentially consistent fence
//! and loads the other flag, so at least one side sees the other.
//!
//! - `accessing` and `failed`: a rank sets `accessing`, then checks `failed`. A rank that leaves after a failure sets
//!   `failed`, then waits for the ranks that are `accessing`.
//! - `sleepers` and the awaited words: a rank that goes to sleep loads the futex word, increments `sleepers`, polls a
//!   last time, and sleeps unless the futex word has changed. A rank that changes an awaited word then checks
//!   `sleepers`, increments the futex word and wakes them.

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
#[cfg(not(loom))]
mod tensors;
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

/// Words of a line: two cache lines, because processors prefetch them in pairs.
const LINE_WORDS: usize = if cfg!(loom) { 2 } else { 16 };

/// The first words of the lines of a board.
const SIZE: usize = 0;
#[cfg(not(loom))]
const TENSOR_BYTES: usize = 1;
const FAILED: usize = LINE_WORDS;
const ALARM: usize = LINE_WORDS + 1;
const FUTEX: usize = 2 * LINE_WORDS;
const SLEEPERS: usize = 3 * LINE_WORDS;
const RECORD: usize = 4 * LINE_WORDS;
const RANK_AREAS: usize = RECORD + record::WORDS;

/// Offsets in the area of a rank.
const STEPS: usize = 2 * posts::POST_WORDS;
const ACCESSING: usize = STEPS + LINE_WORDS;
const TRACE: usize = ACCESSING + LINE_WORDS;
const PRESENCE: usize = TRACE + 2 * LINE_WORDS;
const PROCESS: usize = PRESENCE + LINE_WORDS;
const CALL_TEXT: usize = PROCESS + LINE_WORDS;
const ROWS: usize = CALL_TEXT + text::CALL_TEXT;

/// The shared memory of the ranks of one group.
pub(crate) struct Board {
    memory: BoardMemory,
    size: usize,
    /// The most bytes of a posted tensor in this group.
    #[cfg(not(loom))]
    tensor_bytes: usize,
}

impl Board {
    /// A board for `size` ranks that are threads of this process.
    pub(crate) fn new(size: usize) -> Self {
        Self {
            memory: BoardMemory::heap(count(size)),
            size,
            #[cfg(not(loom))]
            tensor_bytes: tensors::limit(size),
        }
    }

    /// Number of ranks.
    pub(crate) fn size(&self) -> usize {
        self.size
    }

    /// Marks `rank` as accessing published memory, until [`Board::end_access`]. Returns false, without the mark, if the
    /// group has failed.
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

    /// Removes the mark of [`Board::begin_access`].
    pub(crate) fn end_access(&self, rank: usize) {
        self.at(rank, ACCESSING).store(0, Ordering::Release);
    }

    /// Sets `failed`, after which [`Board::begin_access`] returns false.
    fn forbid_access(&self) {
        self.word(FAILED).store(1, Ordering::Relaxed);
        fence(Ordering::SeqCst);
    }

    /// Whether the group has failed.
    pub(crate) fn has_failed(&self) -> bool {
        self.word(FAILED).load(Ordering::Relaxed) != 0
    }

    /// Whether `rank` may be accessing published memory. After a failure, once this was false for a rank it stays
    /// false.
    pub(crate) fn is_accessing(&self, rank: usize) -> bool {
        self.at(rank, ACCESSING).load(Ordering::Acquire) != 0
    }

    /// Whether waiting ranks must check for a failure, and for ranks that have left.
    pub(crate) fn is_alarmed(&self) -> bool {
        self.word(ALARM).load(Ordering::Relaxed) != 0
    }

    /// Makes all waiting ranks check for a failure, and for ranks that have left.
    fn alarm(&self) {
        self.word(ALARM).store(1, Ordering::Relaxed);
        self.wake_sleepers();
    }

    /// The words in which `rank` records its current operation.
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

/// Number of words of a board for `size` ranks.
fn count(size: usize) -> usize {
    #[cfg(not(loom))]
    let areas = 2 * size * tensors::AREA_WORDS;
    #[cfg(loom)]
    let areas = 0;
    tensor_areas(size) + areas
}

/// The first word of the areas for posted tensors.
fn tensor_areas(size: usize) -> usize {
    rank_area(size, size) + size * size * messages::PAIR_WORDS
}

/// The first word of a rank's area.
fn rank_area(size: usize, rank: usize) -> usize {
    RANK_AREAS + rank * (ROWS + 2 * posts::row(size))
}

/// The first word of a pair's messages.
fn pair(size: usize, from: usize, to: usize) -> usize {
    rank_area(size, size) + (from * size + to) * messages::PAIR_WORDS
}

/// `words`, rounded up to whole lines.
const fn lines(words: usize) -> usize {
    words.next_multiple_of(LINE_WORDS)
}
