//! The futex on which ranks sleep. It works between processes too.

use std::time::Duration;

use super::{Board, SLEEPERS};
use crate::sync::{AtomicU32, Ordering, fence};

/// A futex word that changes with each wake-up.
#[derive(Clone, Copy)]
pub(super) struct Futex<'a>(pub(super) &'a AtomicU32, #[cfg(loom)] pub(super) &'a Kernel);

impl Board {
    /// Calls `poll`, and sleeps for at most `limit` if it returns none. The sleep ends with the next
    /// [wake-up](Board::wake_sleepers), and may end earlier.
    pub(crate) fn sleep_unless<T>(&self, limit: Duration, poll: impl FnOnce() -> Option<T>) -> Option<T> {
        let (futex, sleepers) = (self.memory.futex(), self.word(SLEEPERS));
        let observed = futex.value();
        sleepers.fetch_add(1, Ordering::Relaxed);
        fence(Ordering::SeqCst);
        let found = poll();
        if found.is_none() {
            futex.sleep(observed, limit);
        }
        sleepers.fetch_sub(1, Ordering::Relaxed);
        found
    }

    /// Wakes sleeping ranks after a change that they may wait for. A rank that goes to sleep at the same time either
    /// sees the change in its last poll, or is seen here.
    pub(crate) fn wake_sleepers(&self) {
        fence(Ordering::SeqCst);
        if self.word(SLEEPERS).load(Ordering::Relaxed) > 0 {
            self.memory.futex().wake_all();
        }
    }
}

impl Futex<'_> {
    /// The value of the word. Loaded before the last poll.
    fn value(self) -> u32 {
        self.0.load(Ordering::Acquire)
    }

    fn wake_all(self) {
        self.0.fetch_add(1, Ordering::AcqRel);
        self.wake();
    }
}

#[cfg(not(loom))]
impl Futex<'_> {
    /// Sleeps unless the word has changed since it was `observed`.
    fn sleep(self, observed: u32, limit: Duration) {
        use rustix::thread::{Timespec, futex};
        let limit = Timespec { tv_sec: limit.as_secs().min(3600) as i64, tv_nsec: limit.subsec_nanos().into() };
        // Errors are ignored: a signal, a changed word and the limit all end the sleep, and the caller polls again.
        _ = futex::wait(self.0, futex::Flags::empty(), observed, Some(&limit));
    }

    fn wake(self) {
        use rustix::thread::futex;
        _ = futex::wake(self.0, futex::Flags::empty(), i32::MAX as u32);
    }
}

/// The kernel of a loom model: comparing the word, sleeping and waking happen under its lock.
#[cfg(loom)]
pub(super) struct Kernel(loom::sync::Mutex<()>, loom::sync::Condvar);

#[cfg(loom)]
impl Kernel {
    pub(super) fn new() -> Self {
        Self(loom::sync::Mutex::new(()), loom::sync::Condvar::new())
    }
}

#[cfg(loom)]
impl Futex<'_> {
    fn sleep(self, observed: u32, _: Duration) {
        let lock = self.1.0.lock().unwrap();
        if self.value() == observed {
            drop(self.1.1.wait(lock));
        }
    }

    fn wake(self) {
        let _lock = self.1.0.lock().unwrap();
        self.1.1.notify_all();
    }
}
