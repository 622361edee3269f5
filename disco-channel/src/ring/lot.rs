//! The queue of sleeping readers, and their wake-up.

use std::collections::VecDeque;
use std::sync::PoisonError;
use std::time::Duration;

use super::state::{Position, RingState};
use super::sync::{AtomicBool, Mutex, MutexGuard, Ordering, thread};

/// Readers that each woken reader wakes in turn (tree wake-up). With 1 the readers would wake one after the other, each
/// after the wake-up delay of an idle processor.
const FAN_OUT: usize = 2;
/// How long readers may sleep on items that did not wake them, once the reader that was woken sleeps, too.
const REST_INTERVAL: Duration = Duration::from_millis(200);

/// The sleeping readers.
///
/// A reader sleeps only at the head, so the queue is sorted by position, and its front has the most to read. A sleeper
/// below `due` has to wake up. Invariants, while the lock is free:
/// - if the front is due, another thread is about to wake it: the writer that took the wake bit when it published, or
///   (`chain`) a reader that was woken before;
/// - if a sleeper is not due, the wake bit is set, or the writer has just taken it and is about to lock.
pub(super) struct Lot {
    parked: Mutex<Parked>,
    /// Sleepers may have items to read that did not wake them. Changed under the lock.
    owes: AtomicBool,
}

struct Parked {
    queue: VecDeque<Sleeper>,
    /// The reader that was last taken from the queue has not woken the next ones yet.
    chain: bool,
    /// The head after the latest item for all readers for which the writer took the wake bit.
    due: Position,
}

struct Sleeper {
    reader: usize,
    position: Position,
    thread: thread::Thread,
}

impl Lot {
    /// An empty queue with capacity for `readers`.
    pub(super) fn new(readers: usize) -> Self {
        let queue = VecDeque::with_capacity(readers);
        let parked = Mutex::new(Parked { queue, chain: false, due: Position::START });
        Self { parked, owes: AtomicBool::new(false) }
    }

    /// Sleeps until there is an item at `position` that wakes this reader, or until [`Lot::wake_all`] once `stop`
    /// holds. A woken reader wakes the next ones. A reader that sleeps while others have unread items wakes them after
    /// an interval.
    pub(super) fn sleep(&self, reader: usize, position: Position, state: &RingState, stop: impl Fn() -> bool) {
        let mut parked = self.lock();
        if state.ask_wake().head() != position || stop() {
            return;
        }
        parked.queue.push_back(Sleeper { reader, position, thread: thread::current() });
        let mut owes = self.owes();
        drop(parked);
        loop {
            if owes {
                sleep_for(REST_INTERVAL)
            } else {
                thread::park()
            }
            if !self.lock().queue.iter().any(|sleeper| sleeper.reader == reader) {
                return (0..FAN_OUT).for_each(|_| wake_next(self.lock()));
            }
            if std::mem::take(&mut owes) {
                self.wake_rest(state);
            }
        }
    }

    /// Starts the wake-up of all readers that have something to read, unless it is in progress.
    pub(super) fn wake_some(&self, state: &RingState) {
        let mut parked = self.lock();
        parked.due = state.load().head();
        self.owes.store(false, Ordering::Relaxed);
        if !parked.chain {
            wake_next(parked);
        }
    }

    /// Wakes one reader. Other readers sleep on until [`Lot::wake_some`] or [`Lot::wake_rest`]. Without `reader`, the first
    /// sleeper wakes up, unless another reader wakes the rest already. That sleeper's next sleep has a time limit, and
    /// calls without `reader` do not end it.
    pub(super) fn wake_only(&self, reader: Option<usize>) {
        let mut parked = self.lock();
        let place = match reader {
            None if self.owes() => None,
            None => Some(0),
            reader => parked.queue.iter().position(|sleeper| Some(sleeper.reader) == reader),
        };
        let target = place.and_then(|place| parked.queue.remove(place));
        // Without `reader`, the woken sleeper is soon asleep again. This flag gives that sleep its time limit.
        if reader.is_none() || !parked.queue.is_empty() {
            self.owes.store(true, Ordering::Relaxed);
        }
        drop(parked);
        if let Some(target) = target {
            target.thread.unpark();
        }
    }

    /// Wakes readers that sleep on items that did not wake them, if there are any.
    pub(super) fn wake_rest(&self, state: &RingState) {
        // Only the writer sets the flag, so a writer that finds the ring full needs no lock.
        if self.owes() {
            self.wake_some(state);
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

    fn owes(&self) -> bool {
        self.owes.load(Ordering::Relaxed)
    }

    fn lock(&self) -> MutexGuard<'_, Parked> {
        self.parked.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Wakes the front after unlocking, since the woken reader takes the lock at once.
fn wake_next(mut parked: MutexGuard<'_, Parked>) {
    let next = parked.next();
    drop(parked);
    if let Some(thread) = next {
        thread.unpark();
    }
}

impl Parked {
    /// Removes the front if it is due. If it is not, the wake bit is set, and the next publisher wakes it.
    fn next(&mut self) -> Option<thread::Thread> {
        let is_due = self.queue.front().is_some_and(|sleeper| sleeper.position.is_before(self.due));
        self.chain = is_due;
        if is_due { self.queue.pop_front().map(|sleeper| sleeper.thread) } else { None }
    }
}

#[cfg(not(loom))]
fn sleep_for(time: Duration) {
    thread::park_timeout(time);
}

/// Models have no time: the interval is over at once.
#[cfg(loom)]
fn sleep_for(_: Duration) {
    thread::yield_now();
}
