//! How a writer that found the ring full hears that there is room again.

use super::state::Position;
use super::sync::{AtomicBool, AtomicU64, Ordering, Padded, fence};

/// The readers' side of the ring's fill: the first position that is not free again, and who waits for it to move.
pub(super) struct Room {
    capacity: usize,
    /// Written by the reader that takes an item as the last one; positions before it are free.
    tail: Padded<AtomicU64>,
    /// Somebody found the ring full, and was not told since.
    starved: AtomicBool,
    on_room: Box<dyn Fn() + Send + Sync>,
}

impl Room {
    /// An empty ring's.
    pub(super) fn new(capacity: usize, on_room: Box<dyn Fn() + Send + Sync>) -> Self {
        let tail = Padded(AtomicU64::new(Position::START.bits()));
        Self { capacity, tail, starved: AtomicBool::new(false), on_room }
    }

    /// Slots.
    pub(super) fn capacity(&self) -> usize {
        self.capacity
    }

    /// Everything before it was taken by all readers, who are done with it.
    pub(super) fn tail(&self) -> Position {
        Position::from_bits(self.tail.load(Ordering::Acquire))
    }

    /// The tail, after a claim to be told when it has moved far enough.
    pub(super) fn starve(&self) -> Position {
        self.starved.store(true, Ordering::Relaxed);
        // Pairs with the fence in `advance`: either we see the tail that was stored before it, or that reader sees us.
        fence(Ordering::SeqCst);
        self.tail()
    }

    /// Everything before `tail` is free. Only the last reader of the slot before it says so, so tails come in order.
    /// Tells the starved at the first quarter of the ring where half of it is free.
    pub(super) fn advance(&self, tail: Position, head: impl FnOnce() -> Position) {
        self.tail.store(tail.bits(), Ordering::Release);
        // A fence for every item would cost more than the rest of taking it. Between the tail where half is free and
        // an empty ring there is always a quarter.
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
