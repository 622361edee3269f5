//! The writing end.

use std::fmt;

use super::Refused;
use super::sync::{Arc, Ordering};
use super::track::{Pen, Track};

/// The one who writes. Dropping it closes the ring.
pub struct Writer<T> {
    pen: Pen<T>,
}

/// What anybody may ask of a ring, or do to it, while its writer is in use elsewhere.
pub struct Handle<T> {
    track: Arc<Track<T>>,
}

impl<T: Clone> Writer<T> {
    pub(super) fn new(pen: Pen<T>) -> Self {
        Self { pen }
    }

    /// Passes an item to every reader that has not left. Never waits for readers.
    ///
    /// # Errors
    /// [`Refused::Full`] while the slowest reader has yet to take the item that stands in the next slot; the ring tells
    /// when half of it is free. [`Refused::Closed`] once closed, or when no reader is left.
    pub fn send(&mut self, item: &T) -> Result<(), Refused> {
        if self.pen.track.closed.load(Ordering::Relaxed) {
            return Err(Refused::Closed);
        }
        if self.pen.push(item)? {
            self.pen.track.lot.wake_one(&self.pen.track.state);
        }
        Ok(())
    }
}

impl<T> Writer<T> {
    /// A handle to this ring.
    pub fn handle(&self) -> Handle<T> {
        Handle { track: self.pen.track.clone() }
    }
}

impl<T> Handle<T> {
    /// Items that the ring takes now: at least so many, and 0 only if it is full. Whoever sees 0 is told when half of
    /// the ring is free.
    pub fn room(&self) -> usize {
        self.track.room()
    }

    /// Ends reading, ahead of all items that are still in the ring. They are freed when their readers are dropped.
    pub fn close(&self) {
        close(&self.track);
    }
}

impl<T> Drop for Writer<T> {
    fn drop(&mut self) {
        close(&self.pen.track);
    }
}

/// Sleepers look at the flag under the lock that `wake_all` takes: they see it, or they are woken.
fn close<T>(track: &Track<T>) {
    track.closed.store(true, Ordering::Release);
    track.lot.wake_all();
}

impl<T> Clone for Handle<T> {
    fn clone(&self) -> Self {
        Self { track: self.track.clone() }
    }
}

impl<T> fmt::Debug for Writer<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.handle().fmt(f)
    }
}

impl<T> fmt::Debug for Handle<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (word, tail) = (self.track.state.load(), self.track.room.tail());
        f.debug_struct("Ring")
            .field("capacity", &self.track.room.capacity())
            .field("unread", &word.head().since(tail))
            .field("readers", &word.live())
            .field("closed", &self.track.closed.load(Ordering::Relaxed))
            .finish()
    }
}
