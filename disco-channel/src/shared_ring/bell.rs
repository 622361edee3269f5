//! What readers sleep on: a futex, which works between processes.

use std::num::NonZeroU32;

use crate::ring::sync::{AtomicU32, Ordering};

/// A word that changes whenever somebody rings.
#[derive(Clone, Copy)]
pub(super) struct Bell<'a>(pub(super) &'a AtomicU32, #[cfg(loom)] pub(super) &'a Kernel);

impl Bell<'_> {
    /// How often it was rung. Read before looking for what is awaited.
    pub(super) fn rung(self) -> u32 {
        self.0.load(Ordering::Acquire)
    }

    /// Wakes those who sleep and whom it concerns.
    pub(super) fn ring(self, whom: Whom) {
        let Some(mask) = whom.mask() else { return };
        self.0.fetch_add(1, Ordering::AcqRel);
        self.wake(mask);
    }
}

/// Whom a record concerns. Others find it when they wake up for something else.
#[non_exhaustive]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Whom {
    /// All readers.
    All,
    /// One of them.
    One(usize),
    /// None of them.
    Nobody,
}

impl Whom {
    /// One of 32 bits for a reader, which it may share with others.
    fn mask(self) -> Option<NonZeroU32> {
        match self {
            Whom::All => NonZeroU32::new(u32::MAX),
            Whom::One(reader) => NonZeroU32::new(1 << (reader % 32)),
            Whom::Nobody => None,
        }
    }
}

#[cfg(not(loom))]
impl Bell<'_> {
    /// Sleeps unless somebody has rung since. May wake up early.
    pub(super) fn sleep(self, rung: u32, reader: usize) {
        use rustix::thread::futex;
        let Some(mask) = Whom::One(reader).mask() else { return };
        // Both its ways to fail, a signal and a word that has changed, end the sleep as they should.
        _ = futex::wait_bitset(self.0, futex::Flags::empty(), rung, None, mask);
    }

    fn wake(self, mask: NonZeroU32) {
        use rustix::thread::futex;
        _ = futex::wake_bitset(self.0, futex::Flags::empty(), i32::MAX as u32, mask);
    }
}

/// A model's kernel: sleepers compare the word, and are woken, under its lock.
#[cfg(loom)]
pub(super) struct Kernel {
    /// What was rung for, by bits, and not heard by whoever sleeps with them.
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
        let bit = Whom::One(reader).mask().unwrap().get();
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
