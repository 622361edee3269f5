//! Jobs of other threads for a worker's thread.

#![allow(unsafe_code)]

use std::mem;
use std::sync::mpsc::{self, Receiver, Sender};
use std::sync::{Arc, OnceLock};

use disco::WorkerContext;

use crate::forks::forks;

/// Work with the worker.
pub(crate) type Job = Box<dyn FnOnce(&mut WorkerContext) + Send>;

/// The jobs of a worker.
#[derive(Clone)]
pub(crate) struct Jobs {
    jobs: Sender<Job>,
    /// Number of forks when the jobs began: a child has no thread that takes them.
    pub(crate) forks: u32,
    /// The reason for which the worker takes no more jobs.
    why: Arc<OnceLock<String>>,
}

impl Jobs {
    /// Jobs, and where the worker's thread takes them.
    pub(crate) fn new() -> (Self, Receiver<Job>) {
        let (jobs, waiting) = mpsc::channel();
        (Self { jobs, forks: forks(), why: Arc::default() }, waiting)
    }

    /// Wakes the worker's thread, which is to take no more jobs.
    pub(crate) fn end(&self, why: String) {
        // The first reason stays.
        _ = self.why.set(why);
        // A job without work: the send fails if the thread has ended before.
        _ = self.jobs.send(Box::new(|_| ()));
    }

    /// Runs `work` on the worker's thread, and waits for it.
    ///
    /// # Errors
    /// Errors of `work`, and [`Error::Closed`](disco::Error::Closed) if the worker takes no more jobs.
    pub(crate) fn run<T: Send>(
        &self,
        work: impl FnOnce(&mut WorkerContext) -> disco::Result<T> + Send,
    ) -> disco::Result<T> {
        let (done, result) = mpsc::channel();
        let job = move |worker: &mut WorkerContext| {
            let result = work(worker);
            // Nothing of `work` is left now. Its caller waits for this.
            _ = done.send(result);
        };
        let job: Box<dyn FnOnce(&mut WorkerContext) + Send + '_> = Box::new(job);
        // SAFETY: only the lifetime changes. What `job` borrows lives until this function returns, which waits below until `job`
        // has run or was dropped: `done` belongs to it, and is used or dropped after `work`.
        let job = unsafe { mem::transmute::<Box<dyn FnOnce(&mut WorkerContext) + Send + '_>, Job>(job) };
        let closed = || {
            let why = self.why.get().map_or("its function serves no more", String::as_str);
            disco::Error::Closed(format!("the group has ended: {why}"))
        };
        self.jobs.send(job).map_err(|_| closed())?;
        result.recv().unwrap_or_else(|_| Err(closed()))
    }
}
