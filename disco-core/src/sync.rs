//! Locks without poisoning.
//!
//! A panic in a worker function is caught and reported as the worker's error, so it must not make later uses of a lock
//! fail. The holder of a lock keeps the data valid wherever it may panic, and poison is ignored.

use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// Locks `mutex`, also after a thread panicked while it held the lock.
pub fn lock<T: ?Sized>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Waits for a notification of `condvar`, also after a thread panicked while it held the lock. Wakes up without a cause
/// at times.
pub fn wait<'a, T>(condvar: &Condvar, guard: MutexGuard<'a, T>) -> MutexGuard<'a, T> {
    condvar.wait(guard).unwrap_or_else(PoisonError::into_inner)
}

/// [`wait`] for at most `limit`.
pub fn wait_timeout<'a, T>(condvar: &Condvar, guard: MutexGuard<'a, T>, limit: Duration) -> MutexGuard<'a, T> {
    condvar.wait_timeout(guard, limit).unwrap_or_else(PoisonError::into_inner).0
}

#[cfg(test)]
mod tests {
    use std::panic::{self, AssertUnwindSafe};
    use std::sync::Mutex;

    use super::lock;

    #[test]
    fn lock_succeeds_after_its_holder_panicked() {
        let mutex = Mutex::new(1);
        let panicked = panic::catch_unwind(AssertUnwindSafe(|| {
            *lock(&mutex) = 2;
            let _guard = lock(&mutex);
            panic!("expected by this test");
        }));
        assert!(panicked.is_err() && mutex.is_poisoned());
        assert_eq!(*lock(&mutex), 2);
    }
}
