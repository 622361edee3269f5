//! What the double was asked to launch.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

static UNITS: AtomicU64 = AtomicU64::new(0);
static CALLS: AtomicU64 = AtomicU64::new(0);

/// One more unit.
pub(crate) fn unit() {
    UNITS.fetch_add(1, Relaxed);
}

/// One more call.
pub(crate) fn call() {
    CALLS.fetch_add(1, Relaxed);
}

/// Units so far.
pub(crate) fn units() -> u64 {
    UNITS.load(Relaxed)
}

/// Calls so far.
pub(crate) fn calls() -> u64 {
    CALLS.load(Relaxed)
}
