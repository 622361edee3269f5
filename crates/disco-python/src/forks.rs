//! Forks of the program: sessions stay with the parent.

use std::sync::atomic::{AtomicU32, Ordering};

use pyo3::prelude::*;

/// The reason why the child of a fork can't use its parent's sessions.
pub(crate) const FORKED: &str = "this process was forked after the session had started, and the session stays with the parent: start \
                                 processes with `multiprocessing.get_context(\"spawn\")`, or start the session in this process";

/// Number of forks that have made this process.
static FORKS: AtomicU32 = AtomicU32::new(0);

pub(crate) fn forks() -> u32 {
    FORKS.load(Ordering::Relaxed)
}

/// This process is the child of a fork: sessions stay with the parent.
#[pyfunction]
pub(crate) fn note_fork() {
    FORKS.fetch_add(1, Ordering::Relaxed);
}
