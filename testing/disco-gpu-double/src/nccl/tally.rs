//! Counters of launched units and of calls.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

static UNITS: AtomicU64 = AtomicU64::new(0);
static CALLS: AtomicU64 = AtomicU64::new(0);

/// Counts a unit.
pub(crate) fn unit() {
    UNITS.fetch_add(1, Relaxed);
}

/// Counts a call.
pub(crate) fn call() {
    CALLS.fetch_add(1, Relaxed);
}

/// Number of units so far.
pub(crate) fn units() -> u64 {
    UNITS.load(Relaxed)
}

/// Number of calls so far.
pub(crate) fn calls() -> u64 {
    CALLS.load(Relaxed)
}
