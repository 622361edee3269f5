//! A worker that other threads of its process use: a function serves them, one job after the other, until it is to end. A back
//! end of `torch.distributed` is so.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use disco::Scope;
use disco_core::sync;
use pyo3::exceptions::PyRuntimeError;
use pyo3::prelude::*;

use crate::access::Access;
use crate::communicator::Communicator;
use crate::context::Context;
use crate::jobs::{Job, Jobs};
use crate::lock::detached;

/// How often the function that serves looks whether its call is cancelled or its session has ended.
const LOOK_EVERY: Duration = Duration::from_millis(100);

/// Where other threads of a worker's process leave jobs for it.
#[pyclass(frozen, module = "disco._disco")]
pub(crate) struct Desk {
    jobs: Jobs,
    waiting: Mutex<Option<Receiver<Job>>>,
    is_closed: AtomicBool,
}

#[pymethods]
impl Desk {
    #[new]
    fn new() -> Self {
        let (jobs, waiting) = Jobs::new();
        Self { jobs, waiting: Mutex::new(Some(waiting)), is_closed: AtomicBool::new(false) }
    }

    /// Serves other threads with the worker of a function, until the desk is closed, the call is cancelled, or the session ends.
    fn serve(&self, ctx: &Bound<'_, Context>) -> PyResult<()> {
        let Some(waiting) = sync::lock(&self.waiting).take() else {
            return Err(PyRuntimeError::new_err("a desk is served once"));
        };
        let py = ctx.py();
        ctx.get().access.with(|worker| {
            detached(py, || {
                while !self.is_closed.load(Ordering::Acquire) {
                    match waiting.recv_timeout(LOOK_EVERY) {
                        Ok(job) => job(worker),
                        Err(RecvTimeoutError::Timeout) if !worker.cancelled() => {}
                        Err(_) => break,
                    }
                }
                Ok(())
            })
        })
    }

    /// The communicator of all workers, for any thread of the process.
    fn communicator(&self) -> Communicator {
        let access = Arc::new(Access::Served(self.jobs.clone()));
        Communicator { access, scope: Scope::World, starts: false }
    }

    /// Ends `serve`. Later operations of the communicator are an error with this reason.
    fn close(&self, why: String) {
        self.is_closed.store(true, Ordering::Release);
        // Without a thread that takes them, jobs are dropped here, which ends the waits of their callers.
        sync::lock(&self.waiting).take();
        self.jobs.end(why);
    }
}
