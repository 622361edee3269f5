//! The interpreter's lock: the only place that takes it.

use std::thread;

use pyo3::prelude::*;

use crate::forks::{end_child, is_worker, note_worker};
use crate::interrupts::block_interrupts;

/// Runs `work` with the interpreter's lock, on the thread of a worker that executes a command.
#[expect(clippy::disallowed_methods, reason = "the one place")]
pub(crate) fn attached<T>(work: impl for<'py> FnOnce(Python<'py>) -> T) -> T {
    note_worker();
    Python::attach(|py| {
        let result = work(py);
        end_child(py, None);
        result
    })
}

/// Drops what may be the end of a session, and then waits for its workers, which may wait for the interpreter's lock.
#[expect(clippy::disallowed_methods, reason = "the one place")]
pub(crate) fn dropped(value: impl Send + 'static) {
    if is_worker() {
        // The interpreter frees an object on whatever thread runs; a worker can't wait for itself.
        let end = move || {
            block_interrupts();
            drop(value);
        };
        // Without threads, the program waits here.
        _ = thread::Builder::new().name("disco-end".into()).spawn(end);
        return;
    }
    Python::attach(|py| detached(py, || drop(value)));
}

/// Runs `work` without the lock, on this thread.
pub(crate) fn detached<T>(py: Python<'_>, work: impl FnOnce() -> T) -> T {
    let work = OnThisThread(work);
    let OnThisThread(result) = py.detach(move || {
        let work = work;
        OnThisThread((work.0)())
    });
    result
}

/// `detach` asks for [`Send`] to keep Python's objects out, but runs on the same thread.
struct OnThisThread<T>(T);

// SAFETY: the value does not leave its thread.
#[allow(unsafe_code)]
unsafe impl<T> Send for OnThisThread<T> {}
