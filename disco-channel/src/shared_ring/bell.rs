//! The futex that readers sleep on, in memory that processes share.

use std::num::NonZeroU32;

use crate::ring::WakeTarget;
use crate::ring::sync::{AtomicU32, Ordering};

/// A futex word that each ring increments.
#[derive(Clone, Copy)]
pub(super) struct Bell<'a>(pub(super) &'a AtomicU32, #[cfg(loom)] pub(super) &'a Kernel);

impl Bell<'_> {
    /// The value of the word. Read it before checking the awaited condition.
    pub(super) fn rung(self) -> u32 {
        self.0.load(Ordering::Acquire)
    }

    /// Wakes the sleepers of `target`.
    pub(super) fn ring(self, target: WakeTarget) {
        let Some(mask) = target.mask() else { return };
        self.0.fetch_add(1, Ordering::AcqRel);
        self.wake(mask);
    }
}

impl WakeTarget {
    /// The futex bitset of the target. Readers whose indices are equal modulo 32 share a bit.
    fn mask(self) -> Option<NonZeroU32> {
        match self {
            WakeTarget::All => NonZeroU32::new(u32::MAX),
            WakeTarget::One(reader) => NonZeroU32::new(1 << (reader % 32)),
            WakeTarget::Nobody => None,
        }
    }
}

#[cfg(not(loom))]
impl Bell<'_> {
    /// Sleeps unless the word differs from `rung`. May wake spuriously.
    pub(super) fn sleep(self, rung: u32, reader: usize) {
        use rustix::thread::futex;
        let Some(mask) = WakeTarget::One(reader).mask() else { return };
        // Fails on a signal or a changed word; both end the sleep.
        _ = futex::wait_bitset(self.0, futex::Flags::empty(), rung, None, mask);
    }

    fn wake(self, mask: NonZeroU32) {
        use rustix::thread::futex;
        _ = futex::wake_bitset(self.0, futex::Flags::empty(), i32::MAX as u32, mask);
    }
}

/// The kernel's futex queue in loom models: comparing the word and waking happen under its lock.
#[cfg(loom)]
pub(super) struct Kernel {
    /// Bits that were rung and not consumed by a sleeper.
    rung: loom::sync::Mutex<u32>,
    woken: loom::sync::Condvar,
}

#[cfg(loom)]
impl Kernel {
    pub(super) fn new() -> Self {
        Self { rung: loom::sync::Mutex::new(0), woken: loom::sync::Condvar::new() }
    }
}

#[cfg(loom)]
impl Bell<'_> {
    pub(super) fn sleep(self, rung: u32, reader: usize) {
        let bit = WakeTarget::One(reader).mask().unwrap().get();
        let mut for_whom = self.1.rung.lock().unwrap();
        if self.rung() != rung {
            return;
        }
        *for_whom &= !bit;
        while *for_whom & bit == 0 {
            for_whom = self.1.woken.wait(for_whom).unwrap();
        }
    }

    fn wake(self, mask: NonZeroU32) {
        *self.1.rung.lock().unwrap() |= mask.get();
        self.1.woken.notify_all();
    }
}
