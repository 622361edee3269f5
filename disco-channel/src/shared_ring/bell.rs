//! What readers sleep on: a futex, which works between processes.

use crate::ring::sync::{AtomicU32, Ordering};

/// A word that changes whenever somebody rings.
#[derive(Clone, Copy)]
pub(super) struct Bell<'a>(pub(super) &'a AtomicU32, #[cfg(loom)] pub(super) &'a Kernel);

impl Bell<'_> {
    /// How often it was rung. Read before looking for what is awaited.
    pub(super) fn rung(self) -> u32 {
        self.0.load(Ordering::Acquire)
    }

    /// Wakes all who sleep.
    pub(super) fn ring(self) {
        self.0.fetch_add(1, Ordering::AcqRel);
        self.wake();
    }
}

#[cfg(not(loom))]
impl Bell<'_> {
    /// Sleeps unless somebody has rung since. May wake up early.
    pub(super) fn sleep(self, rung: u32) {
        use rustix::thread::futex;
        // Both its ways to fail, a signal and a word that has changed, end the sleep as they should.
        _ = futex::wait(self.0, futex::Flags::empty(), rung, None);
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
impl Bell<'_> {
    pub(super) fn sleep(self, rung: u32) {
        let lock = self.1.0.lock().unwrap();
        if self.rung() == rung {
            drop(self.1.1.wait(lock));
        }
    }

    fn wake(self) {
        let _lock = self.1.0.lock().unwrap();
        self.1.1.notify_all();
    }
}
