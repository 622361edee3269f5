//! Where readers sleep that found nothing for a while, and who wakes them.

use std::collections::VecDeque;
use std::sync::PoisonError;

use super::state::{Position, State};
use super::sync::{Mutex, MutexGuard, thread};

/// Sleepers that one who was woken wakes before it goes to work. With 1 they would wake up one after the other, each with
/// the delay of a processor that idles; with 2 they do so in a tree, and nobody spends long on it.
const FAN_OUT: usize = 2;

/// The readers that sleep.
///
/// Everybody lies down at the head, having read all there is, so the queue is sorted by position and its front is the
/// one with most to read. Whenever the lock is free and the front has something to read, somebody is on the way to look
/// after it: the writer that took the wake bit with what it published, or (`chain`) a reader that was woken before.
pub(super) struct Lot(Mutex<Parked>);

struct Parked {
    queue: VecDeque<Sleeper>,
    /// The last reader that was taken from the queue has not come to look after the next yet.
    chain: bool,
}

struct Sleeper {
    reader: usize,
    position: Position,
    thread: thread::Thread,
}

impl Lot {
    /// Beds for so many.
    pub(super) fn new(readers: usize) -> Self {
        Self(Mutex::new(Parked { queue: VecDeque::with_capacity(readers), chain: false }))
    }

    /// Sleeps until there is an item at `position`, or `stop` tells so and somebody called [`Lot::wake_all`]. Who wakes
    /// up wakes the next ones.
    pub(super) fn sleep(&self, reader: usize, position: Position, state: &State, stop: impl Fn() -> bool) {
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

    /// Starts waking those who have something to read, unless that is under way.
    pub(super) fn wake_one(&self, state: &State) {
        let parked = self.lock();
        if !parked.chain {
            wake_next(parked, state);
        }
    }

    /// Wakes everybody, whatever there is to read.
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

/// Wakes outside of the lock, which the one who is woken takes at once.
fn wake_next(mut parked: MutexGuard<'_, Parked>, state: &State) {
    let next = parked.next(state);
    drop(parked);
    if let Some(thread) = next {
        thread.unpark();
    }
}

impl Parked {
    /// Takes the front out if it has something to read. If not, nothing was published since it lay down, so that the
    /// wake bit is still set and the next publisher comes here.
    fn next(&mut self, state: &State) -> Option<thread::Thread> {
        self.chain = false;
        let position = self.queue.front()?.position;
        self.chain = state.load().head() != position;
        if self.chain { self.queue.pop_front().map(|sleeper| sleeper.thread) } else { None }
    }
}
