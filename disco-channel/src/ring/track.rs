//! The slots, and who may touch which one when. All unsafe code of the ring is here; what is exported is safe.
#![allow(unsafe_code)]

use super::Refused;
use super::lot::Lot;
use super::room::Room;
use super::state::{Position, State};
use super::sync::{Arc, AtomicBool, AtomicU32, AtomicU64, Ordering, Padded, UnsafeCell};

/// What writer and readers share.
pub(super) struct Track<T> {
    slots: Box<[Slot<T>]>,
    pub(super) closed: AtomicBool,
    pub(super) room: Room,
    pub(super) lot: Lot,
    pub(super) state: Padded<State>,
    /// The last tail that the writer looked at.
    known_tail: Padded<AtomicU64>,
}

struct Slot<T> {
    /// Readers that have not taken the item yet.
    shares: AtomicU32,
    item: UnsafeCell<Option<T>>,
}

// SAFETY: items are moved in by one thread, cloned through shared references by others and moved out or dropped by yet
// another one, which `Send + Sync` items allow; who may do what when is kept by `Pen` and `Cursor`.
unsafe impl<T: Send + Sync> Sync for Track<T> {}

impl<T> Track<T> {
    fn slot(&self, position: Position) -> &Slot<T> {
        // The number of slots is a power of two, so the position's own wrap-around does not matter.
        &self.slots[position.bits() as usize & (self.slots.len() - 1)]
    }

    /// Items that would be taken now. Exact if the ring was found full, else perhaps too low; 0 means starved.
    pub(super) fn room(&self) -> usize {
        let left = |tail: Position| self.room.capacity().saturating_sub(self.state.load().head().since(tail));
        // The tail is on a line that readers write to all the time: leave it alone while there is no need.
        let known = left(Position::from_bits(self.known_tail.load(Ordering::Acquire)));
        if known > 0 {
            return known;
        }
        match left(self.room.tail()) {
            0 => left(self.room.starve()),
            room => room,
        }
    }
}

/// The right to fill slots. There is one.
pub(super) struct Pen<T> {
    pub(super) track: Arc<Track<T>>,
    tail: Position,
}

/// One reader's right to what was published while it counts. It counts until it is dropped.
pub(super) struct Cursor<T> {
    pub(super) track: Arc<Track<T>>,
    /// The next item to take: this reader's shares are those from here up.
    position: Position,
    /// A head seen; items before it are there.
    seen: Position,
}

/// A track of `capacity` slots, a power of two, with its pen and its cursors.
pub(super) fn track<T>(capacity: usize, readers: usize, room: Room) -> (Pen<T>, Vec<Cursor<T>>) {
    let slot = |_| Slot { shares: AtomicU32::new(0), item: UnsafeCell::new(None) };
    let track = Arc::new(Track {
        slots: (0..capacity).map(slot).collect(),
        closed: AtomicBool::new(false),
        room,
        lot: Lot::new(readers),
        state: Padded(State::new(readers as u32)),
        known_tail: Padded(AtomicU64::new(Position::START.bits())),
    });
    let cursor = |_| Cursor { track: track.clone(), position: Position::START, seen: Position::START };
    let cursors = (0..readers).map(cursor).collect();
    (Pen { track, tail: Position::START }, cursors)
}

impl<T: Clone> Pen<T> {
    /// Publishes an item for all readers that count. Tells whether a sleeper is to be woken.
    pub(super) fn push(&mut self, item: &T) -> Result<bool, Refused> {
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
        // SAFETY: nobody else touches the slot: it is not published, there is one pen, and we hold it exclusively; the
        // readers of the item that was here before are done with it, since the tail that we acquired is past it.
        slot.item.with_mut(|cell| unsafe { *cell = Some(item) });
        loop {
            slot.shares.store(word.live(), Ordering::Relaxed);
            match track.state.publish(word) {
                Ok(()) => return Ok(word.wake()),
                // Meanwhile a reader retired, or lay down.
                Err(now) => word = now,
            }
            if word.live() == 0 {
                // SAFETY: as above, for it was not published.
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

    /// Gives one share up without looking at the item.
    fn skip(&mut self) {
        let slot = self.track.slot(self.position);
        let last = slot.shares.fetch_sub(1, Ordering::AcqRel) == 1;
        if last {
            // SAFETY: ours was the last share, so that nobody else reads the item, the others' uses are before their
            // decrements, which we acquired, and the pen stays away until we move the tail.
            let item = slot.item.with_mut(|cell| unsafe { (*cell).take() });
            drop(item);
        }
        self.step(last);
    }
}

impl<T: Clone> Cursor<T> {
    /// The next item, if there is one. The last reader moves it out of its slot.
    pub(super) fn take(&mut self) -> Option<T> {
        if !self.is_ready() {
            return None;
        }
        let slot = self.track.slot(self.position);
        if slot.shares.load(Ordering::Acquire) == 1 {
            // SAFETY: the one share left is ours; otherwise as in `skip`.
            let item = slot.item.with_mut(|cell| unsafe { (*cell).take() });
            self.step(true);
            return item;
        }
        // SAFETY: as long as we hold a share nobody writes to the slot or moves the item out; it was published, which
        // we acquired with the head.
        let item = slot.item.with(|cell| unsafe { (*cell).clone() });
        self.skip();
        item
    }
}

impl<T> Drop for Cursor<T> {
    /// Gives all shares up and counts no more. Done in one exchange that fails if an item was published meanwhile: so
    /// every use of a slot is before the first item that does not count us, and tails stay in order.
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
