//! The reading end.

use std::fmt;

use super::Closed;
use super::spin_policy::{Expect, SpinPolicy};
use super::sync::Ordering;
use super::track::Cursor;

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
