//! The reading end.

use std::fmt;

use super::Closed;
use super::patience::Patience;
use super::sync::Ordering;
use super::track::Cursor;

/// One of those who read. Dropping it gives up what it has not read, and the ring no longer waits for it.
pub struct Reader<T> {
    cursor: Cursor<T>,
    index: usize,
    patience: Patience,
}

impl<T: Clone> Reader<T> {
    pub(super) fn new(cursor: Cursor<T>, index: usize, patience: Patience) -> Self {
        Self { cursor, index, patience }
    }

    /// The next item. Waits for it: spins, then yields, then sleeps.
    ///
    /// # Errors
    /// [`Closed`] once the ring is closed, whatever is still unread.
    pub fn recv(&mut self) -> Result<T, Closed> {
        loop {
            if self.is_closed() {
                return Err(Closed);
            }
            match self.cursor.take() {
                Some(item) => return Ok(item),
                None => self.wait(),
            }
        }
    }

    fn wait(&mut self) {
        let patience = self.patience;
        if patience.look(|| self.is_over()) {
            return;
        }
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

impl<T> fmt::Debug for Reader<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Reader").field("index", &self.index).field("position", &self.cursor.position()).finish()
    }
}
