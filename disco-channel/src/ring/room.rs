//! Back-pressure: tells a writer that found the ring full when half of it is free.

use super::state::Position;
use super::sync::{AtomicBool, AtomicU64, Ordering, Padded, fence};

/// The tail of the ring, and whether a writer waits for it to advance.
pub(super) struct Room {
    capacity: usize,
    /// Stored by the last reader of each item; positions before it are free.
    tail: Padded<AtomicU64>,
    /// The ring was found full, and `on_room` was not called since.
    starved: AtomicBool,
    on_room: Box<dyn Fn() + Send + Sync>,
}

impl Room {
    /// The state of an empty ring.
    pub(super) fn new(capacity: usize, on_room: Box<dyn Fn() + Send + Sync>) -> Self {
        let tail = Padded(AtomicU64::new(Position::START.bits()));
        Self { capacity, tail, starved: AtomicBool::new(false), on_room }
    }

    /// Number of slots.
    pub(super) fn capacity(&self) -> usize {
        self.capacity
    }

    /// All readers have finished with the items before this position.
    pub(super) fn tail(&self) -> Position {
        Position::from_bits(self.tail.load(Ordering::Acquire))
    }

    /// Requests a call of `on_room`, and returns the tail as loaded after that.
    pub(super) fn starve(&self) -> Position {
        self.starved.store(true, Ordering::Relaxed);
        // Pairs with the fence in `advance`: either this thread sees the tail stored before that fence, or the reader
        // sees the flag.
        fence(Ordering::SeqCst);
        self.tail()
    }

    /// Frees all positions before `tail`. Called by the last reader of each slot, so tails come in order. Checks at
    /// every quarter of the ring whether a writer waits, and calls `on_room` once half of the ring is free.
    pub(super) fn advance(&self, tail: Position, head: impl FnOnce() -> Position) {
        self.tail.store(tail.bits(), Ordering::Release);
        // A fence for each item would cost more than taking it. One check per quarter is enough: a quarter boundary
        // lies between the tail at which half is free and an empty ring.
        let quarter = (self.capacity / 4).max(1) as u64;
        if tail.bits() & (quarter - 1) != 0 {
            return;
        }
        fence(Ordering::SeqCst);
        if self.starved.load(Ordering::Relaxed)
            && head().since(tail) <= self.capacity / 2
            && self.starved.swap(false, Ordering::Relaxed)
        {
            (self.on_room)();
        }
    }
}
