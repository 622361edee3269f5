//! What ranks sleep on: a futex, which works between processes.

use std::time::Duration;

use super::{Board, SLEEPERS};
use crate::sync::{AtomicU32, Ordering, fence};

/// A word that changes whenever somebody rings.
#[derive(Clone, Copy)]
pub(super) struct Futex<'a>(pub(super) &'a AtomicU32, #[cfg(loom)] pub(super) &'a Kernel);

impl Board {
    /// Looks once more, and sleeps if there is nothing, until somebody rings, at most for `limit`. May wake up early.
    pub(crate) fn sleep_unless<T>(&self, limit: Duration, poll: impl FnOnce() -> Option<T>) -> Option<T> {
        let (futex, sleepers) = (self.memory.futex(), self.word(SLEEPERS));
        let observed = futex.observed();
        sleepers.fetch_add(1, Ordering::Relaxed);
        fence(Ordering::SeqCst);
        let found = poll();
        if found.is_none() {
            futex.sleep(observed, limit);
        }
        sleepers.fetch_sub(1, Ordering::Relaxed);
        found
    }

    /// Wakes those who sleep, after a change that they may wait for: either they see it or this sees them.
    pub(crate) fn wake_sleepers(&self) {
        fence(Ordering::SeqCst);
        if self.word(SLEEPERS).load(Ordering::Relaxed) > 0 {
            self.memory.futex().wake_all();
        }
    }
}

impl Futex<'_> {
    /// How often it was rung. Read before looking for what is awaited.
    fn observed(self) -> u32 {
        self.0.load(Ordering::Acquire)
    }

    fn wake_all(self) {
        self.0.fetch_add(1, Ordering::AcqRel);
        self.wake();
    }
}

#[cfg(not(loom))]
impl Futex<'_> {
    /// Sleeps unless somebody has rung since.
    fn sleep(self, observed: u32, limit: Duration) {
        use rustix::thread::{Timespec, futex};
        let limit = Timespec { tv_sec: limit.as_secs().min(3600) as i64, tv_nsec: limit.subsec_nanos().into() };
        // All its ways to fail, a signal, a word that has changed, the time, end the sleep as they should.
        _ = futex::wait(self.0, futex::Flags::empty(), observed, Some(&limit));
    }

    fn wake(self) {
        use rustix::thread::futex;
        _ = futex::wake(self.0, futex::Flags::empty(), i32::MAX as u32);
    }
}

/// A model's kernel: sleepers compare the word, and are woken, under its lock.
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
        if self.observed() == observed {
            drop(self.1.1.wait(lock));
        }
    }

    fn wake(self) {
        let _lock = self.1.0.lock().unwrap();
        self.1.1.notify_all();
    }
}
