//! The slots of the ring, and the rights to access them. All unsafe code of the ring is here, behind a safe interface.
#![allow(unsafe_code)]

use super::Refused;
use super::lot::Lot;
use super::room::Room;
use super::state::{Position, RingState};
use super::sync::{Arc, AtomicBool, AtomicU32, AtomicU64, Ordering, Padded, UnsafeCell};

/// State shared by the writer and the readers.
pub(super) struct Track<T> {
    slots: Box<[Slot<T>]>,
    pub(super) closed: AtomicBool,
    pub(super) room: Room,
    pub(super) lot: Lot,
    pub(super) state: Padded<RingState>,
    /// The tail that the writer loaded last.
    known_tail: Padded<AtomicU64>,
}

struct Slot<T> {
    /// Number of readers that have not taken the item.
    shares: AtomicU32,
    item: UnsafeCell<Option<T>>,
}

// SAFETY: one thread moves an item in, others clone it through `&T`, and another moves it out or drops it, which `T:
// Send + Sync` allows. `Pen` and `Cursor` order these accesses to `Slot::item`: a slot is written only before it is
// published, and emptied only with the last share.
unsafe impl<T: Send + Sync> Sync for Track<T> {}

impl<T> Track<T> {
    fn slot(&self, position: Position) -> &Slot<T> {
        // The number of slots is a power of two, so positions may wrap around.
        &self.slots[position.bits() as usize & (self.slots.len() - 1)]
    }

    /// Number of free slots: a lower bound. For 0, the ring is full and a call of `on_room` was requested.
    pub(super) fn room(&self) -> usize {
        let left = |tail: Position| self.room.capacity().saturating_sub(self.state.load().head().since(tail));
        // Readers write the tail's cache line often, so it is loaded only if the known tail leaves no slot.
        let known = left(Position::from_bits(self.known_tail.load(Ordering::Acquire)));
        if known > 0 {
            return known;
        }
        match left(self.room.tail()) {
            0 => {
                let room = left(self.room.starve());
                self.lot.wake_rest(&self.state);
                room
            }
            room => room,
        }
    }
}

/// The right to fill slots. Each ring has one pen.
pub(super) struct Pen<T> {
    pub(super) track: Arc<Track<T>>,
    tail: Position,
}

/// A reader's right to the items that are published while it is live, which is until it is dropped.
pub(super) struct Cursor<T> {
    pub(super) track: Arc<Track<T>>,
    /// The next item to take. The reader holds shares of the items from here on.
    position: Position,
    /// The head as last loaded; items before it are published.
    seen: Position,
}

/// Makes a track of `capacity` slots, a power of two, with its pen and cursors.
pub(super) fn track<T>(capacity: usize, readers: usize, room: Room) -> (Pen<T>, Vec<Cursor<T>>) {
    let slot = |_| Slot { shares: AtomicU32::new(0), item: UnsafeCell::new(None) };
    let track = Arc::new(Track {
        slots: (0..capacity).map(slot).collect(),
        closed: AtomicBool::new(false),
        room,
        lot: Lot::new(readers),
        state: Padded(RingState::new(readers as u32)),
        known_tail: Padded(AtomicU64::new(Position::START.bits())),
    });
    let cursor = |_| Cursor { track: track.clone(), position: Position::START, seen: Position::START };
    let cursors = (0..readers).map(cursor).collect();
    (Pen { track, tail: Position::START }, cursors)
}

impl<T: Clone> Pen<T> {
    /// Publishes an item for all live readers. Returns whether there are sleepers to be woken. With `takes_wake`, the
    /// caller has to wake all of them.
    pub(super) fn push(&mut self, item: &T, takes_wake: bool) -> Result<bool, Refused> {
        let mut word = self.track.state.load();
        let head = word.head();
        if !self.is_free(head) {
            return Err(Refused::Full);
        }
        let track = &*self.track;
        if word.live() == 0 {
            return Err(Refused::Closed);
        }
        let (slot, item) = (track.slot(head), item.clone());
        // SAFETY: no other thread accesses the slot. It is not published, and this `&mut Pen` is the only one; the
        // readers of its previous item have finished, since the tail acquired in `is_free` is past it.
        slot.item.with_mut(|cell| unsafe { *cell = Some(item) });
        loop {
            slot.shares.store(word.live(), Ordering::Relaxed);
            match track.state.publish(word, takes_wake) {
                Ok(()) => return Ok(word.wake()),
                // A reader has retired or set the wake bit meanwhile.
                Err(now) => word = now,
            }
            if word.live() == 0 {
                // SAFETY: the slot was not published, and there is one pen, so no other thread accesses the slot.
                slot.item.with_mut(|cell| unsafe { *cell = None });
                return Err(Refused::Closed);
            }
        }
    }

    fn is_free(&mut self, head: Position) -> bool {
        let capacity = self.track.room.capacity();
        if head.since(self.tail) < capacity {
            return true;
        }
        self.tail = self.track.room.tail();
        if head.since(self.tail) == capacity {
            self.tail = self.track.room.starve();
            self.track.lot.wake_rest(&self.track.state);
        }
        self.track.known_tail.store(self.tail.bits(), Ordering::Release);
        head.since(self.tail) < capacity
    }
}

impl<T> Cursor<T> {
    /// The next item's position.
    pub(super) fn position(&self) -> Position {
        self.position
    }

    /// Whether there is an item.
    pub(super) fn is_ready(&mut self) -> bool {
        if self.position == self.seen {
            self.seen = self.track.state.load().head();
        }
        self.position != self.seen
    }

    fn step(&mut self, last: bool) {
        self.position = self.position.next();
        if last {
            self.track.room.advance(self.position, || self.track.state.load().head());
        }
    }

    /// Gives up the share of the next item without reading it.
    fn skip(&mut self) {
        let slot = self.track.slot(self.position);
        let last = slot.shares.fetch_sub(1, Ordering::AcqRel) == 1;
        if last {
            // SAFETY: this was the last share, so no other reader accesses the item from now on; accesses of other
            // readers happen before their decrements, which `AcqRel` acquired; the pen does not use the slot before
            // this reader advances the tail.
            let item = slot.item.with_mut(|cell| unsafe { (*cell).take() });
            drop(item);
        }
        self.step(last);
    }
}

impl<T: Clone> Cursor<T> {
    /// Takes the next item, if there is one. The last reader moves it out of the slot; others clone it.
    pub(super) fn take(&mut self) -> Option<T> {
        if !self.is_ready() {
            return None;
        }
        let slot = self.track.slot(self.position);
        if slot.shares.load(Ordering::Acquire) == 1 {
            // SAFETY: the only share left is this reader's, so no other reader accesses the item; the acquire load
            // orders accesses of other readers before this one; the pen does not use the slot before this reader
            // advances the tail.
            let item = slot.item.with_mut(|cell| unsafe { (*cell).take() });
            self.step(true);
            return item;
        }
        // SAFETY: while this reader holds a share, no thread writes to the slot or moves the item out; the item was
        // written before the head that `is_ready` acquired.
        let item = slot.item.with(|cell| unsafe { (*cell).clone() });
        self.skip();
        item
    }
}

impl<T> Drop for Cursor<T> {
    /// Gives up all shares, then stops being live by an exchange that fails if an item was published meanwhile. So each
    /// access of this reader happens before the first item that does not count it, and tails stay in order.
    fn drop(&mut self) {
        loop {
            let word = self.track.state.load();
            while self.position != word.head() {
                self.skip();
            }
            if self.track.state.retire(word).is_ok() {
                return;
            }
        }
    }
}
