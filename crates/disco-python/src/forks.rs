//! Forks: sessions, workers and their contexts stay with the parent.

use std::cell::Cell;
use std::process;
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

thread_local! {
    /// Number of forks when this thread began to execute commands, if it does so.
    static WORKER_SINCE: Cell<Option<u32>> = const { Cell::new(None) };
}

/// This thread executes commands.
pub(crate) fn note_worker() {
    WORKER_SINCE.set(WORKER_SINCE.get().or_else(|| Some(forks())));
}

/// Whether this thread executes commands.
pub(crate) fn is_worker() -> bool {
    WORKER_SINCE.get().is_some()
}

/// Whether a function of a worker has forked, and this is the child, which is no worker.
pub(crate) fn is_child_of_worker() -> bool {
    WORKER_SINCE.get().is_some_and(|since| since != forks())
}

/// Ends this process if it is the child of a worker, with the exception of its code if there is one: else it would go on as the
/// worker, beside its parent.
pub(crate) fn end_child(py: Python<'_>, error: Option<&PyErr>) {
    if is_child_of_worker() {
        let error = error.map(|error| error.value(py));
        _ = py.import("disco._worker").and_then(|worker| worker.getattr("end_child")?.call1((error,)));
        process::exit(1);
    }
}
