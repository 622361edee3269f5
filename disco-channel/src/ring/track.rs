//! The slots of the ring, and the rights to access them. All unsafe code of the ring is here, behind a safe interface.
#![allow(unsafe_code)]

use super::lot::Lot;
use super::room::Room;
use super::state::{Position, RingState};
use super::sync::{Arc, AtomicBool, AtomicU32, AtomicU64, Ordering, Padded, UnsafeCell};
use super::{Refused, Release};

/// Items after which the pen loads the tail, to drop the items before it.
const SWEEP_INTERVAL: u64 = 64;
/// Items that the pen drops for each item that it publishes.
const SWEPT_PER_ITEM: usize = 2;

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
    /// Number of readers that have not read the item; 0 if the pen drops the item.
    shares: AtomicU32,
    item: UnsafeCell<Option<T>>,
}

// SAFETY: one thread moves an item in, others read it through `&T`, and another drops it, which `T: Send + Sync`
// allows. `Pen` and `Cursor` order these accesses to `Slot::item`: a slot is written only before it is published, and
// emptied only with the last share, or by the pen once the cursors of all readers are past it.
unsafe impl<T: Send + Sync> Sync for Track<T> {}

impl<T> Track<T> {
    fn slot(&self, position: Position) -> &Slot<T> {
        // The number of slots is a power of two, so positions may wrap around.
        &self.slots[position.bits() as usize & (self.slots.len() - 1)]
    }

    fn head(&self) -> Position {
        self.state.load().head()
    }

    /// Number of free slots: a lower bound. For 0, the ring is full and a call of `on_room` was requested.
    pub(super) fn room(&self) -> usize {
        let left = |tail: Position| self.room.capacity().saturating_sub(self.head().since(tail));
        // The cursors are on many cache lines, so they are loaded only if the known tail leaves no slot.
        let known = left(Position::from_bits(self.known_tail.load(Ordering::Acquire)));
        if known > 0 {
            return known;
        }
        match left(self.room.tail(|| self.head())) {
            0 => {
                let room = left(self.room.starve(|| self.head()));
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
    /// The slots of the items before this position are empty.
    swept: Position,
}

/// A reader's right to the items that are published while it is live, which is until it is dropped.
pub(super) struct Cursor<T> {
    pub(super) track: Arc<Track<T>>,
    index: usize,
    /// The next item to read, or the item that is being read. The reader holds shares of the items from here on.
    position: Position,
    is_reading: bool,
    /// The head as last loaded; items before it are published.
    seen: Position,
    /// The position that was stored last.
    stored: Position,
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
    let start = Position::START;
    let cursor =
        |index| Cursor { track: track.clone(), index, position: start, is_reading: false, seen: start, stored: start };
    let cursors = (0..readers).map(cursor).collect();
    (Pen { track, tail: start, swept: start }, cursors)
}

impl<T: Clone> Pen<T> {
    /// Publishes an item for all live readers. Returns whether there are sleepers to be woken. With `takes_wake`, the
    /// caller has to wake all of them.
    pub(super) fn push(&mut self, item: &T, release: Release, takes_wake: bool) -> Result<bool, Refused> {
        let mut word = self.track.state.load();
        let head = word.head();
        if !self.is_free(head) {
            return Err(Refused::Full);
        }
        if word.live() == 0 {
            return Err(Refused::Closed);
        }
        self.sweep(head);
        let track = &*self.track;
        let (slot, item) = (track.slot(head), item.clone());
        // SAFETY: no other thread accesses the slot. It is not published, and this `&mut Pen` is the only one; the
        // readers of its previous item have finished, since the tail acquired in `is_free` is past it.
        slot.item.with_mut(|cell| unsafe { *cell = Some(item) });
        loop {
            let shares = if release == Release::ByWriter && word.live() > 1 { 0 } else { word.live() };
            slot.shares.store(shares, Ordering::Relaxed);
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

    #[inline]
    fn is_free(&mut self, head: Position) -> bool {
        let capacity = self.track.room.capacity();
        if head.since(self.tail) < capacity {
            return true;
        }
        let mut tail = self.track.room.tail(|| head);
        if head.since(tail) == capacity {
            tail = self.track.room.starve(|| head);
            self.track.lot.wake_rest(&self.track.state);
        }
        self.set_tail(tail);
        head.since(tail) < capacity
    }

    fn set_tail(&mut self, tail: Position) {
        self.tail = tail;
        self.track.known_tail.store(tail.bits(), Ordering::Release);
    }

    /// Drops items that all readers have read. Drops few at a time, so that no call takes long, but enough to empty the
    /// slot at `head`.
    #[inline]
    fn sweep(&mut self, head: Position) {
        if head.bits().is_multiple_of(SWEEP_INTERVAL) {
            let tail = self.track.room.tail(|| head);
            self.set_tail(tail);
        }
        for _ in 0..SWEPT_PER_ITEM {
            if self.swept == self.tail {
                return;
            }
            let slot = self.track.slot(self.swept);
            self.swept = self.swept.next();
            // SAFETY: all readers have finished with the slot, since the acquired tail is past it, and this `&mut Pen`
            // is the only one.
            let item = slot.item.with_mut(|cell| unsafe { (*cell).take() });
            drop(item);
        }
        debug_assert!(head.since(self.swept) < self.track.room.capacity());
    }
}

impl<T> Cursor<T> {
    /// The position of the next item. No item is being read.
    pub(super) fn position(&self) -> Position {
        self.position
    }

    /// Whether there is an item.
    #[inline]
    pub(super) fn is_ready(&mut self) -> bool {
        if self.position == self.seen {
            self.seen = self.track.head();
        }
        self.position != self.seen
    }

    /// The next item, if there is one. It is being read until [`Cursor::finish`].
    #[inline]
    pub(super) fn read(&mut self) -> Option<&T> {
        if !self.is_ready() {
            return None;
        }
        self.is_reading = true;
        let slot = self.track.slot(self.position);
        // SAFETY: until this reader has given up its share and stored a position past the item, no thread writes to the
        // slot or empties it; both need `&mut self`, and the result borrows `self`. The item was written before the
        // head that `is_ready` acquired.
        slot.item.with(|cell| unsafe { (*cell).as_ref() })
    }

    /// Ends the reading of the current item.
    #[inline]
    pub(super) fn finish(&mut self) {
        if std::mem::take(&mut self.is_reading) {
            // Loom does not see accesses through the reference, so it counts the end of the reading as one.
            #[cfg(loom)]
            self.track.slot(self.position).item.with(|_| ());
            self.step();
        }
    }

    /// Stores the position, so that the writer can use the slots before it.
    pub(super) fn store(&mut self) {
        if self.stored != self.position {
            self.stored = self.position;
            self.track.room.store(self.index, self.position, || self.track.head());
        }
    }

    /// Gives up the share of the item at this position, and goes on to the next one.
    #[inline]
    fn step(&mut self) {
        let slot = self.track.slot(self.position);
        let is_last = match slot.shares.load(Ordering::Acquire) {
            0 => false,
            1 => true,
            _ => slot.shares.fetch_sub(1, Ordering::AcqRel) == 1,
        };
        let mut item = None;
        if is_last {
            // SAFETY: this was the last share, so no other reader accesses the item from now on; accesses of other
            // readers happen before their decrements, which the load or the decrement acquired; the pen does not use
            // the slot before this reader has stored a position past it.
            item = slot.item.with_mut(|cell| unsafe { (*cell).take() });
        }
        self.position = self.position.next();
        if self.track.room.is_due(self.position) {
            self.store();
        }
        drop(item);
    }
}

impl<T> Drop for Cursor<T> {
    /// Gives up all shares, then stops being live by an exchange that fails if an item was published meanwhile. So each
    /// access of this reader happens before the first item that does not count it.
    fn drop(&mut self) {
        loop {
            let word = self.track.state.load();
            while self.position != word.head() {
                self.step();
            }
            if self.track.state.retire(word).is_ok() {
                break;
            }
        }
        self.track.room.retire(self.index, || self.track.head());
    }
}
