//! The ends of the ring: its writer and its readers.

use std::fmt;

use super::spin_policy::{Expect, SpinPolicy};
use super::sync::{Arc, Ordering};
use super::track::{Cursor, Pen, Track};
use super::{Closed, Refused, Release, WakeTarget};

/// The writer of a ring. Dropping it closes the ring.
pub struct Writer<T> {
    pen: Pen<T>,
}

/// Reads the state of a ring, and closes it, from any thread while the writer is in use.
pub struct RingControl<T> {
    track: Arc<Track<T>>,
}

impl<T: Clone> Writer<T> {
    /// Passes an item to every reader that has not left, and wakes them. The last reader drops it. Never waits for
    /// readers.
    ///
    /// # Errors
    /// [`Refused::Full`] while the slowest reader has not finished with the item in the next slot; the ring calls
    /// `on_room` when half of it is free. [`Refused::Closed`] once the ring is closed or no reader is left.
    pub fn send(&mut self, item: &T) -> Result<(), Refused> {
        self.send_to(item, WakeTarget::All, Release::ByLastReader)
    }

    /// [`Writer::send`], but wakes only the readers of `target`, and releases the item as `release` says. Other readers
    /// sleep on until an item wakes them, the ring is full, or the target has slept for 200 ms.
    ///
    /// # Errors
    /// As [`Writer::send`].
    pub fn send_to(&mut self, item: &T, target: WakeTarget, release: Release) -> Result<(), Refused> {
        if self.pen.track.closed.load(Ordering::Relaxed) {
            return Err(Refused::Closed);
        }
        if self.pen.push(item, release, target == WakeTarget::All)? {
            let track = &self.pen.track;
            match target {
                WakeTarget::All => track.lot.wake_some(&track.state),
                WakeTarget::One(reader) => track.lot.wake_only(Some(reader)),
                WakeTarget::Nobody => track.lot.wake_only(None),
            }
        }
        Ok(())
    }
}

impl<T> Writer<T> {
    pub(super) fn new(pen: Pen<T>) -> Self {
        Self { pen }
    }

    /// Returns a control handle of this ring.
    pub fn control(&self) -> RingControl<T> {
        RingControl { track: self.pen.track.clone() }
    }
}

impl<T> RingControl<T> {
    /// A lower bound of the number of items that the ring takes now. Returns 0 only for a full ring; then `on_room` is
    /// called when half of it is free.
    pub fn room(&self) -> usize {
        self.track.room()
    }

    /// Closes the ring: readers get no more items, not even unread ones.
    pub fn close(&self) {
        close(&self.track);
    }
}

impl<T> Drop for Writer<T> {
    fn drop(&mut self) {
        close(&self.pen.track);
    }
}

/// No sleeper misses the flag: readers check it under the lock that `wake_all` takes.
fn close<T>(track: &Track<T>) {
    track.closed.store(true, Ordering::Release);
    track.lot.wake_all();
}

impl<T> Clone for RingControl<T> {
    fn clone(&self) -> Self {
        Self { track: self.track.clone() }
    }
}

impl<T> fmt::Debug for Writer<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.control().fmt(f)
    }
}

impl<T> fmt::Debug for RingControl<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let tail = self.track.room.tail(|| self.track.state.load().head());
        let word = self.track.state.load();
        f.debug_struct("Ring")
            .field("capacity", &self.track.room.capacity())
            .field("unread", &word.head().since(tail))
            .field("readers", &word.live())
            .field("closed", &self.track.closed.load(Ordering::Relaxed))
            .finish()
    }
}

/// A reader of the ring. Dropping it passes over its unread items, and the ring no longer waits for it.
pub struct Reader<T> {
    cursor: Cursor<T>,
    index: usize,
    spin_policy: SpinPolicy,
}

impl<T> Reader<T> {
    pub(super) fn new(cursor: Cursor<T>, index: usize, spin_policy: SpinPolicy) -> Self {
        Self { cursor, index, spin_policy }
    }

    /// Waits for the next item: spins, then yields, then sleeps. The item stays in its slot while it is borrowed.
    ///
    /// # Errors
    /// [`Closed`] once the ring is closed, even if items are unread.
    pub fn recv(&mut self) -> Result<&T, Closed> {
        self.recv_expecting(Expect::default())
    }

    /// [`Reader::recv`] by a reader that knows how soon the next item may come.
    pub(crate) fn recv_expecting(&mut self, mut expect: Expect) -> Result<&T, Closed> {
        self.cursor.finish();
        loop {
            if self.is_closed() {
                return Err(Closed);
            }
            if self.cursor.is_ready() {
                break;
            }
            self.wait(std::mem::take(&mut expect));
        }
        self.cursor.read().ok_or(Closed)
    }

    fn wait(&mut self, expect: Expect) {
        let spin_policy = self.spin_policy;
        if spin_policy.spin_until(expect, || self.is_over()) {
            return;
        }
        self.cursor.store();
        let track = &self.cursor.track;
        track.lot.sleep(self.index, self.cursor.position(), &track.state, || track.closed.load(Ordering::Acquire));
    }

    fn is_over(&mut self) -> bool {
        self.cursor.is_ready() || self.is_closed()
    }

    /// Whether the ring is closed.
    pub fn is_closed(&self) -> bool {
        self.cursor.track.closed.load(Ordering::Acquire)
    }
}

impl<T> Drop for Reader<T> {
    /// Wakes the readers that items for this reader have passed over, since this reader no longer does so.
    fn drop(&mut self) {
        self.cursor.track.lot.wake_rest(&self.cursor.track.state);
    }
}

impl<T> fmt::Debug for Reader<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Reader").field("index", &self.index).field("position", &self.cursor.position()).finish()
    }
}
