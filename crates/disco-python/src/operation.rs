//! Waits: for Ctrl-C, for a time limit, and for asyncio, without the interpreter's lock.

use std::cell::RefCell;
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
use crate::forks::{FORKED, forks};
use crate::lock::{detached, dropped};

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
    /// Number of forks when it began.
    forks: u32,
}

/// A file that wakes the thread, or the event loop, that waits for it.
struct Bell(OwnedFd);

impl Bell {
    fn new() -> PyResult<Self> {
        let event = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK);
        Ok(Self(event.map_err(std::io::Error::from)?))
    }

    /// That of this thread. Rings for its earlier operations only wake it too soon.
    fn of_thread() -> PyResult<Arc<Self>> {
        thread_local! {
            static BELL: RefCell<Option<(u32, Arc<Bell>)>> = const { RefCell::new(None) };
        }
        BELL.with_borrow_mut(|bell| match bell {
            // The parent of a fork waits for the same file.
            Some((made, bell)) if *made == forks() => Ok(bell.clone()),
            _ => Ok(bell.insert((forks(), Arc::new(Self::new()?))).1.clone()),
        })
    }

    fn ring(&self) {
        // The counter is full only if it was never read.
        _ = write(&self.0, &1u64.to_ne_bytes());
    }

    fn forget_rings(&self) {
        let mut count = [0; 8];
        while matches!(read(&self.0, &mut count), Err(Errno::INTR)) {}
    }
}

impl Wake for Bell {
    fn wake(self: Arc<Self>) {
        self.ring();
    }
}

/// The operations that an event loop waits for, by numbers of its own; they share one file.
#[pyclass(frozen, module = "disco._disco")]
pub(crate) struct Waits(Arc<Ready>);

struct Ready {
    bell: Bell,
    numbers: Mutex<Vec<u64>>,
}

/// Wakes the event loop for one operation.
struct Wait {
    ready: Arc<Ready>,
    number: u64,
}

impl Wake for Wait {
    fn wake(self: Arc<Self>) {
        sync::lock(&self.ready.numbers).push(self.number);
        self.ready.bell.ring();
    }
}

#[pymethods]
impl Waits {
    #[new]
    fn new() -> PyResult<Self> {
        Ok(Self(Arc::new(Ready { bell: Bell::new()?, numbers: Mutex::default() })))
    }

    /// The file that becomes readable when an operation can go on.
    fn fileno(&self) -> RawFd {
        self.0.bell.0.as_raw_fd()
    }

    /// The numbers of the operations that can go on.
    fn ready(&self) -> Vec<u64> {
        self.0.bell.forget_rings();
        std::mem::take(&mut *sync::lock(&self.0.numbers))
    }
}

impl Operation {
    /// Begins `future`, whose result `finish` makes a Python object.
    pub(crate) fn new<T: Send + 'static, E: Into<Failed>>(
        future: impl Future<Output = Result<T, E>> + Send + 'static,
        finish: impl for<'py> FnOnce(Python<'py>, T) -> PyResult<Py<PyAny>> + Send + 'static,
    ) -> Self {
        let running = async move {
            let result = future.await.map_err(E::into)?;
            Ok(Box::new(move |py: Python<'_>| finish(py, result)) as Finish)
        };
        Self { running: Mutex::new(Some(Box::pin(running))), forks: forks() }
    }

    /// Runs until the next wait; the result, if there is one.
    fn advance(&self, waker: &Waker) -> Option<Result<Finish, Failed>> {
        let mut running = sync::lock(&self.running);
        match running.as_mut()?.as_mut().poll(&mut Context::from_waker(waker)) {
            Poll::Ready(result) => {
                *running = None;
                Some(result)
            }
            Poll::Pending => None,
        }
    }

    /// Whether it has no result yet, and can be waited for again.
    pub(crate) fn is_running(&self) -> bool {
        sync::lock(&self.running).is_some()
    }

    /// # Errors
    /// This process is the child of a fork, or the operation has ended.
    fn check(&self) -> PyResult<()> {
        if self.forks != forks() {
            return Err(PyRuntimeError::new_err(FORKED));
        }
        if self.is_running() { Ok(()) } else { Err(PyRuntimeError::new_err("the operation has ended")) }
    }
}

impl Drop for Operation {
    fn drop(&mut self) {
        if self.forks != forks() {
            // Its session is the parent's, and a thread that the fork has left behind may have had the lock.
            if let Some(running) = self.running.get_mut().ok().and_then(Option::take) {
                std::mem::forget(running);
            }
            return;
        }
        // It may have the last reference to a session.
        if let Some(running) = sync::lock(&self.running).take() {
            dropped(running);
        }
    }
}

#[pymethods]
impl Operation {
    /// Waits for the result, at most `timeout` seconds.
    #[pyo3(signature = (timeout = None))]
    pub(crate) fn wait(&self, py: Python<'_>, timeout: Option<f64>) -> PyResult<Py<PyAny>> {
        self.check()?;
        let limit = timeout.map(|seconds| Duration::try_from_secs_f64(seconds.max(0.0)).unwrap_or(Duration::MAX));
        let until = limit.and_then(|limit| Instant::now().checked_add(limit));
        let bell = Bell::of_thread()?;
        let waker = Waker::from(bell.clone());
        loop {
            let result = detached(py, || {
                let result = self.advance(&waker);
                if result.is_none() {
                    let left = until.map_or(LOOK_EVERY, |until| until.saturating_duration_since(Instant::now()));
                    let time = Timespec::try_from(left.min(LOOK_EVERY)).ok();
                    // A signal ends the wait as well as an event does.
                    _ = poll(&mut [PollFd::new(&bell.0, PollFlags::IN)], time.as_ref());
                    bell.forget_rings();
                }
                result
            });
            if let Some(result) = result {
                return result.map_err(|failed| failed.raised(py))?(py);
            }
            py.check_signals()?;
            self.check()?;
            if until.is_some_and(|until| until <= Instant::now()) {
                // The result may have come just now.
                return match detached(py, || self.advance(&waker)) {
                    Some(result) => result.map_err(|failed| failed.raised(py))?(py),
                    None => Err(errors::timeout(py, timeout.unwrap_or_default())),
                };
            }
        }
    }

    /// The operation whose result is what `make` makes of this one's, which it takes the place of.
    fn then(&self, make: Py<PyAny>) -> PyResult<Self> {
        self.check()?;
        let running = sync::lock(&self.running).take();
        let then = async move {
            let Some(running) = running else {
                return Err(disco::Error::State("the operation has ended".into()).into());
            };
            let finish = running.await?;
            Ok(Box::new(move |py: Python<'_>| make.call1(py, (finish(py)?,))) as Finish)
        };
        Ok(Self { running: Mutex::new(Some(Box::pin(then))), forks: self.forks })
    }

    /// Goes on, for an event loop: whether there is a result, which the tuple has. Else `waits` gets the number when the
    /// operation can go on again.
    fn poll(&self, py: Python<'_>, waits: &Waits, number: u64) -> PyResult<Option<(Py<PyAny>,)>> {
        self.check()?;
        let waker = Waker::from(Arc::new(Wait { ready: waits.0.clone(), number }));
        match detached(py, || self.advance(&waker)) {
            Some(result) => Ok(Some((result.map_err(|failed| failed.raised(py))?(py)?,))),
            None => Ok(None),
        }
    }

    /// Ends the wait. The command goes on.
    fn close(&self, py: Python<'_>) {
        if self.forks == forks() {
            detached(py, || *sync::lock(&self.running) = None);
        }
    }
}
