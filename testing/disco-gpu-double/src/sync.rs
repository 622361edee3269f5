//! Locks that ignore poisoning, so that the double works after a panic of a test, and pauses of loops that poll shared
//! memory.

use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use std::{hint, thread};

/// Locks.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Waits for a change.
pub(crate) fn wait<'a, T>(changed: &Condvar, guard: MutexGuard<'a, T>) -> MutexGuard<'a, T> {
    changed.wait(guard).unwrap_or_else(PoisonError::into_inner)
}

/// Waits for a change for at most `limit`.
pub(crate) fn wait_for<'a, T>(changed: &Condvar, guard: MutexGuard<'a, T>, limit: Duration) -> MutexGuard<'a, T> {
    changed.wait_timeout(guard, limit).unwrap_or_else(PoisonError::into_inner).0
}

/// A back-off: spins, then yields, then sleeps.
#[derive(Debug, Default)]
pub(crate) struct Pauses(u32);

impl Pauses {
    const SPINS: u32 = 32;
    const YIELDS: u32 = 32;
    const SLEEP: Duration = Duration::from_micros(50);

    /// Pauses once.
    pub(crate) fn pause(&mut self) {
        self.0 = self.0.saturating_add(1);
        if self.0 <= Self::SPINS {
            hint::spin_loop();
        } else if self.0 <= Self::SPINS + Self::YIELDS {
            thread::yield_now();
        } else {
            thread::sleep(Self::SLEEP);
        }
    }
}
