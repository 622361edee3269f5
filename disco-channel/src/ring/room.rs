//! Back-pressure: the positions of the readers, and the notice to a writer that found the ring full.

use super::state::Position;
use super::sync::{AtomicBool, AtomicU64, Ordering, Padded, fence};

/// The stored position of a reader that has retired.
const RETIRED: u64 = u64::MAX;
/// How often a reader stores its position while it reads: this many times for each turn of the ring.
const STORES_PER_TURN: usize = 8;

/// The positions of the readers, and whether a writer waits for them to advance.
pub(super) struct Room {
    capacity: usize,
    /// Items before a reader's position are read.
    cursors: Box<[Padded<AtomicU64>]>,
    /// The ring was found full, and `on_room` was not called since.
    starved: AtomicBool,
    on_room: Box<dyn Fn() + Send + Sync>,
}

impl Room {
    /// The state of an empty ring with `capacity` slots, a power of two.
    pub(super) fn new(capacity: usize, readers: usize, on_room: Box<dyn Fn() + Send + Sync>) -> Self {
        let cursors = (0..readers).map(|_| Padded(AtomicU64::new(Position::START.bits()))).collect();
        Self { capacity, cursors, starved: AtomicBool::new(false), on_room }
    }

    /// Number of slots.
    pub(super) fn capacity(&self) -> usize {
        self.capacity
    }

    /// The position of the slowest reader, as stored: all readers have read the items before it. `head` is loaded
    /// afterwards, and is the result if all readers have retired.
    pub(super) fn tail(&self, head: impl FnOnce() -> Position) -> Position {
        let live = self.cursors.iter().map(|cursor| cursor.load(Ordering::Acquire)).filter(|bits| *bits != RETIRED);
        let slowest = live.map(Position::from_bits).reduce(|a, b| if b.is_before(a) { b } else { a });
        slowest.unwrap_or_else(head)
    }

    /// Requests a call of `on_room`, and returns the tail as loaded after that.
    pub(super) fn starve(&self, head: impl FnOnce() -> Position) -> Position {
        self.starved.store(true, Ordering::Relaxed);
        // Pairs with the fence in `store`: either this thread sees the position stored before that fence, or the reader
        // sees the flag.
        fence(Ordering::SeqCst);
        self.tail(head)
    }

    /// Whether a reader has to store this position before it reads on.
    pub(super) fn is_due(&self, position: Position) -> bool {
        let step = (self.capacity / STORES_PER_TURN).max(1) as u64;
        position.bits() & (step - 1) == 0
    }

    /// Stores a reader's position. Calls `on_room` if a writer waits and half of the ring is free.
    pub(super) fn store(&self, reader: usize, position: Position, head: impl Fn() -> Position) {
        self.cursors[reader].store(position.bits(), Ordering::Release);
        self.tell(head);
    }

    /// No longer waits for a reader.
    pub(super) fn retire(&self, reader: usize, head: impl Fn() -> Position) {
        self.cursors[reader].store(RETIRED, Ordering::Release);
        self.tell(head);
    }

    /// The slowest reader gets to a position at which it stores, with at most half of the ring ahead of it. Of readers
    /// that store at the same time, the one with the later fence sees the positions of the others.
    fn tell(&self, head: impl Fn() -> Position) {
        fence(Ordering::SeqCst);
        if self.starved.load(Ordering::Relaxed) {
            let tail = self.tail(&head);
            if head().since(tail) <= self.capacity / 2 && self.starved.swap(false, Ordering::Relaxed) {
                (self.on_room)();
            }
        }
    }
}
