//! Locks.

use std::sync::{Mutex, MutexGuard, PoisonError};

/// Locks, also after a panic of another thread: what the locks of this crate guard is whole at any time.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
