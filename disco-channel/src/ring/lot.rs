//! Where readers sleep that found nothing for a while, and who wakes them.

use std::collections::VecDeque;
use std::sync::PoisonError;

use super::state::{Position, State};
use super::sync::{Mutex, MutexGuard, thread};

/// The readers that sleep.
///
/// Everybody sleeps at the head, so the queue is sorted by position and its front is the one with most to read. Under
/// the lock: if the queue has a front, then a reader that was woken is on its way to look after it (`chain`), or the
/// state's wake bit is set and the front has read all there was when it was set.
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
    /// up wakes the next one.
    pub(super) fn sleep(&self, reader: usize, position: Position, state: &State, stop: impl Fn() -> bool) {
        let mut parked = self.lock();
        if state.ask_wake().head() != position || stop() {
            return;
        }
        parked.queue.push_back(Sleeper { reader, position, thread: thread::current() });
        drop(parked);
        loop {
            thread::park();
            let mut parked = self.lock();
            if parked.queue.iter().any(|sleeper| sleeper.reader == reader) {
                continue;
            }
            let next = parked.next(state);
            drop(parked);
            return wake(next);
        }
    }

    /// Starts waking those who have something to read, unless that is under way.
    pub(super) fn wake_one(&self, state: &State) {
        let mut parked = self.lock();
        if !parked.chain {
            let next = parked.next(state);
            drop(parked);
            wake(next);
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

impl Parked {
    /// Takes the front out if it has something to read; sets the wake bit if not.
    fn next(&mut self, state: &State) -> Option<thread::Thread> {
        self.chain = false;
        let position = self.queue.front()?.position;
        self.chain = state.load().head() != position || state.ask_wake().head() != position;
        if self.chain { self.queue.pop_front().map(|sleeper| sleeper.thread) } else { None }
    }
}

fn wake(thread: Option<thread::Thread>) {
    if let Some(thread) = thread {
        thread.unpark();
    }
}
