//! The atomic word that orders writer and readers: head, wake bit and number of live readers.

use super::sync::{AtomicU64, Ordering};

const LIVE_BITS: u32 = 16;
const WAKE: u64 = 1 << LIVE_BITS;
const HEAD_SHIFT: u32 = LIVE_BITS + 1;
const HEAD_ONE: u64 = 1 << HEAD_SHIFT;
const POSITIONS: u64 = u64::MAX >> HEAD_SHIFT;

/// Maximum number of readers of a ring.
pub const MAX_READERS: usize = (1 << LIVE_BITS) - 1;

/// The number of an item, counted modulo 2^47.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Position(u64);

impl Position {
    pub(super) const START: Self = Self(0);

    pub(super) const fn next(self) -> Self {
        Self((self.0 + 1) & POSITIONS)
    }

    /// Items from `earlier` to here. Never above the capacity, so wrapping around does not matter.
    pub(super) const fn since(self, earlier: Self) -> usize {
        (self.0.wrapping_sub(earlier.0) & POSITIONS) as usize
    }

    /// Whether this position is below `other`, which is at most half of all positions away.
    pub(super) const fn is_before(self, other: Self) -> bool {
        let distance = other.since(self) as u64;
        distance > 0 && distance <= POSITIONS / 2
    }

    pub(super) const fn bits(self) -> u64 {
        self.0
    }

    pub(super) const fn from_bits(bits: u64) -> Self {
        Self(bits)
    }
}

/// A value of [`RingState`].
#[derive(Clone, Copy, Debug)]
pub(super) struct Word(u64);

impl Word {
    /// The position that the writer fills next. All items before it are published.
    pub(super) const fn head(self) -> Position {
        Position(self.0 >> HEAD_SHIFT)
    }

    /// Number of live readers, which the next item is for.
    pub(super) const fn live(self) -> u32 {
        (self.0 & (WAKE - 1)) as u32
    }

    /// Whether the next publisher has to wake a sleeper.
    pub(super) const fn wake(self) -> bool {
        self.0 & WAKE != 0
    }
}

/// `head: 47 bits | wake: 1 bit | live: 16 bits`, in one word so that they change atomically together.
pub(super) struct RingState(AtomicU64);

impl RingState {
    pub(super) fn new(live: u32) -> Self {
        Self(AtomicU64::new(u64::from(live)))
    }

    /// The latest word; items before its head are visible.
    #[inline]
    pub(super) fn load(&self) -> Word {
        Word(self.0.load(Ordering::Acquire))
    }

    /// Advances the head, and clears the wake bit if `takes_wake`, unless the word has changed since `seen`.
    #[inline]
    pub(super) fn publish(&self, seen: Word, takes_wake: bool) -> Result<(), Word> {
        let next = seen.0.wrapping_add(HEAD_ONE);
        self.exchange(seen, if takes_wake { next & !WAKE } else { next })
    }

    /// Removes one live reader, unless the word has changed since `seen`.
    pub(super) fn retire(&self, seen: Word) -> Result<(), Word> {
        self.exchange(seen, seen.0 - 1)
    }

    /// Sets the wake bit and returns the word before that. Relaxed: does not make published items visible.
    pub(super) fn ask_wake(&self) -> Word {
        Word(self.0.fetch_or(WAKE, Ordering::Relaxed))
    }

    #[inline]
    fn exchange(&self, seen: Word, next: u64) -> Result<(), Word> {
        let exchanged = self.0.compare_exchange(seen.0, next, Ordering::AcqRel, Ordering::Acquire);
        exchanged.map(drop).map_err(Word)
    }
}
