//! Waits: for Ctrl-C, for a time limit, and for asyncio, without the interpreter's lock.

use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Wake, Waker};
use std::time::{Duration, Instant};

use disco_core::sync;
use pyo3::exceptions::PyRuntimeError;
use pyo3::prelude::*;
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use rustix::io::{Errno, read, write};

use crate::errors;
use crate::lock::{attached, detached};

/// Makes the result of an operation a Python object.
type Finish = Box<dyn for<'py> FnOnce(Python<'py>) -> PyResult<Py<PyAny>> + Send>;

type Running = Pin<Box<dyn Future<Output = Result<Finish, Failed>> + Send>>;

/// Why an operation has no result.
pub(crate) enum Failed {
    One(disco::Error),
    /// Several workers have failed; the first error is the one that all later ones name.
    Several(disco::Error, Vec<disco::Error>),
}

impl From<disco::Error> for Failed {
    fn from(error: disco::Error) -> Self {
        Self::One(error)
    }
}

impl Failed {
    fn raised(&self, py: Python<'_>) -> PyErr {
        match self {
            Self::One(error) => errors::raised(py, error),
            Self::Several(first, all) => errors::raised_group(py, first, all),
        }
    }
}

/// The longest time between two looks for signals of Python: the thread that waits gets them at once, unless the program
/// has threads of its own that take them.
const LOOK_EVERY: Duration = Duration::from_millis(100);

/// An operation of a session that has begun. Dropping it ends the wait, and not the command.
#[pyclass(frozen, module = "disco._disco")]
pub(crate) struct Operation {
    running: Mutex<Option<Running>>,
    waker: Arc<EventWaker>,
}

/// Wakes the thread or the event loop that waits.
struct EventWaker(OwnedFd);

impl Wake for EventWaker {
    fn wake(self: Arc<Self>) {
        // The counter is full only if it was never read.
        _ = write(&self.0, &1u64.to_ne_bytes());
    }
}

impl Operation {
    /// Begins `future`, whose result `finish` makes a Python object.
    pub(crate) fn new<T: Send + 'static, E: Into<Failed>>(
        future: impl Future<Output = Result<T, E>> + Send + 'static,
        finish: impl for<'py> FnOnce(Python<'py>, T) -> PyResult<Py<PyAny>> + Send + 'static,
    ) -> PyResult<Self> {
        let running = async move {
            let result = future.await.map_err(E::into)?;
            Ok(Box::new(move |py: Python<'_>| finish(py, result)) as Finish)
        };
        let event = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).map_err(std::io::Error::from)?;
        Ok(Self { running: Mutex::new(Some(Box::pin(running))), waker: Arc::new(EventWaker(event)) })
    }

    /// Runs until the next wait; the result, if there is one.
    fn advance(&self) -> Option<Result<Finish, Failed>> {
        let mut running = sync::lock(&self.running);
        let waker = Waker::from(self.waker.clone());
        match running.as_mut()?.as_mut().poll(&mut Context::from_waker(&waker)) {
            Poll::Ready(result) => {
                *running = None;
                Some(result)
            }
            Poll::Pending => None,
        }
    }
}

impl Drop for Operation {
    fn drop(&mut self) {
        let running = sync::lock(&self.running).take();
        if running.is_some() {
            // It may have the last reference to a session, whose workers may wait for the interpreter's lock.
            attached(|py| detached(py, || drop(running)));
        }
    }
}

#[pymethods]
impl Operation {
    /// Waits for the result, at most `timeout` seconds.
    #[pyo3(signature = (timeout = None))]
    pub(crate) fn wait(&self, py: Python<'_>, timeout: Option<f64>) -> PyResult<Py<PyAny>> {
        let limit = timeout.map(|seconds| Duration::try_from_secs_f64(seconds.max(0.0)).unwrap_or(Duration::MAX));
        let until = limit.and_then(|limit| Instant::now().checked_add(limit));
        loop {
            let result = detached(py, || match self.advance() {
                Some(result) => Some(result),
                None => {
                    let left = until.map_or(LOOK_EVERY, |until| until.saturating_duration_since(Instant::now()));
                    let time = Timespec::try_from(left.min(LOOK_EVERY)).ok();
                    // A signal ends the wait as well as an event does.
                    _ = poll(&mut [PollFd::new(&self.waker.0, PollFlags::IN)], time.as_ref());
                    self.forget_wakes();
                    None
                }
            });
            if let Some(result) = result {
                return result.map_err(|failed| failed.raised(py))?(py);
            }
            if sync::lock(&self.running).is_none() {
                return Err(PyRuntimeError::new_err("the operation has ended"));
            }
            py.check_signals()?;
            if until.is_some_and(|until| until <= Instant::now()) {
                // The result may have come just now.
                return match detached(py, || self.advance()) {
                    Some(result) => result.map_err(|failed| failed.raised(py))?(py),
                    None => Err(errors::timeout(py, timeout.unwrap_or_default())),
                };
            }
        }
    }

    /// Goes on, for an event loop: whether there is a result, which `result` returns.
    fn poll(&self, py: Python<'_>) -> PyResult<Option<(Py<PyAny>,)>> {
        self.forget_wakes();
        match detached(py, || self.advance()) {
            Some(result) => Ok(Some((result.map_err(|failed| failed.raised(py))?(py)?,))),
            None if sync::lock(&self.running).is_none() => Err(PyRuntimeError::new_err("the operation has ended")),
            None => Ok(None),
        }
    }

    /// The file that becomes readable when `poll` can go on.
    fn fileno(&self) -> RawFd {
        self.waker.0.as_raw_fd()
    }

    /// Ends the wait. The command goes on.
    fn close(&self, py: Python<'_>) {
        detached(py, || *sync::lock(&self.running) = None);
    }
}

impl Operation {
    fn forget_wakes(&self) {
        let mut count = [0; 8];
        while matches!(read(&self.waker.0, &mut count), Err(Errno::INTR)) {}
    }
}
