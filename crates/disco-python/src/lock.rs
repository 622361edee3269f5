//! The interpreter's lock: the only place that takes it.

use pyo3::prelude::*;

/// Runs `work` with the interpreter's lock, on the thread of a worker that executes a command.
#[expect(clippy::disallowed_methods, reason = "the one place")]
pub(crate) fn attached<T>(work: impl for<'py> FnOnce(Python<'py>) -> T) -> T {
    Python::attach(work)
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
