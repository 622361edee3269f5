//! The queue of sleeping readers, and their wake-up.

use std::collections::VecDeque;
use std::sync::PoisonError;

use super::state::{Position, RingState};
use super::sync::{Mutex, MutexGuard, thread};

/// Readers that each woken reader wakes in turn (tree wake-up). With 1 the readers would wake one after the other, each
/// after the wake-up delay of an idle processor.
const FAN_OUT: usize = 2;

/// The sleeping readers.
///
/// A reader sleeps only at the head, so the queue is sorted by position, and its front has the most to read. Invariant:
/// while the lock is free and the front has something to read, another thread is about to wake it: the writer that took
/// the wake bit when it published, or (`chain`) a reader that was woken before.
pub(super) struct Lot(Mutex<Parked>);

struct Parked {
    queue: VecDeque<Sleeper>,
    /// The reader that was last taken from the queue has not woken the next ones yet.
    chain: bool,
}

struct Sleeper {
    reader: usize,
    position: Position,
    thread: thread::Thread,
}

impl Lot {
    /// An empty queue with capacity for `readers`.
    pub(super) fn new(readers: usize) -> Self {
        Self(Mutex::new(Parked { queue: VecDeque::with_capacity(readers), chain: false }))
    }

    /// Sleeps until there is an item at `position`, or until [`Lot::wake_all`] once `stop` holds. A woken reader wakes
    /// the next ones.
    pub(super) fn sleep(&self, reader: usize, position: Position, state: &RingState, stop: impl Fn() -> bool) {
        let mut parked = self.lock();
        if state.ask_wake().head() != position || stop() {
            return;
        }
        parked.queue.push_back(Sleeper { reader, position, thread: thread::current() });
        drop(parked);
        loop {
            thread::park();
            if !self.lock().queue.iter().any(|sleeper| sleeper.reader == reader) {
                return (0..FAN_OUT).for_each(|_| wake_next(self.lock(), state));
            }
        }
    }

    /// Starts the wake-up of readers that have something to read, unless it is in progress.
    pub(super) fn wake_one(&self, state: &RingState) {
        let parked = self.lock();
        if !parked.chain {
            wake_next(parked, state);
        }
    }

    /// Wakes all readers, whether or not there is an item.
    pub(super) fn wake_all(&self) {
        loop {
            let next = self.lock().queue.pop_front();
            match next {
                Some(sleeper) => sleeper.thread.unpark(),
                None => return,
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, Parked> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Wakes the front after unlocking, since the woken reader takes the lock at once.
fn wake_next(mut parked: MutexGuard<'_, Parked>, state: &RingState) {
    let next = parked.next(state);
    drop(parked);
    if let Some(thread) = next {
        thread.unpark();
    }
}

impl Parked {
    /// Removes the front if it has something to read. If not, no item was published since it queued, so the wake bit is
    /// still set and the next publisher wakes it.
    fn next(&mut self, state: &RingState) -> Option<thread::Thread> {
        self.chain = false;
        let position = self.queue.front()?.position;
        self.chain = state.load().head() != position;
        if self.chain { self.queue.pop_front().map(|sleeper| sleeper.thread) } else { None }
    }
}
