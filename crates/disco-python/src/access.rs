//! Access to a worker: of a Python function during its call, on its thread, or of other threads of the worker's process while a
//! function serves them.

#![allow(unsafe_code)]

use std::marker::PhantomData;
use std::ptr;
use std::sync::Arc;
use std::sync::atomic::{AtomicPtr, Ordering};
use std::thread::{self, ThreadId};

use disco::WorkerContext;
use pyo3::exceptions::PyRuntimeError;
use pyo3::prelude::*;

use crate::errors;
use crate::forks::{FORKED, forks, is_child_of_worker};
use crate::jobs::Jobs;
use crate::lock::detached;

/// A worker that Python's objects share.
pub(crate) enum Access {
    /// That of a call.
    Call(Lending),
    /// That of a function that serves other threads.
    Served(Jobs),
}

/// The worker of a call.
pub(crate) struct Lending {
    /// Null while a method uses it, and after the call.
    worker: AtomicPtr<WorkerContext>,
    thread: ThreadId,
}

/// An access that lasts until this value is dropped.
pub(crate) struct Lent<'a>(pub(crate) Arc<Access>, PhantomData<&'a mut WorkerContext>);

impl<'a> Lent<'a> {
    /// Lends the worker to Python.
    pub(crate) fn new(worker: &'a mut WorkerContext) -> Self {
        let lending = Lending { worker: AtomicPtr::new(worker), thread: thread::current().id() };
        Self(Arc::new(Access::Call(lending)), PhantomData)
    }
}

impl Drop for Lent<'_> {
    fn drop(&mut self) {
        if let Access::Call(lending) = &*self.0 {
            lending.worker.store(ptr::null_mut(), Ordering::Relaxed);
        }
    }
}

impl Access {
    /// Runs `work` with the worker, without the interpreter's lock.
    ///
    /// # Errors
    /// Errors of `work`; the call is over, or another thread or the child of a fork asks.
    pub(crate) fn run<T: Send>(
        &self,
        py: Python<'_>,
        work: impl FnOnce(&mut WorkerContext) -> disco::Result<T> + Send,
    ) -> PyResult<T> {
        match self {
            Self::Call(lending) => {
                lending.with(|worker| detached(py, || work(worker)).map_err(|error| errors::raised(py, &error)))
            }
            Self::Served(jobs) if jobs.forks != forks() => Err(PyRuntimeError::new_err(FORKED)),
            Self::Served(jobs) => detached(py, || jobs.run(work)).map_err(|error| errors::raised(py, &error)),
        }
    }

    /// Runs `work` with the worker of a call.
    ///
    /// # Errors
    /// As of [`run`](Self::run).
    pub(crate) fn with<T>(&self, work: impl FnOnce(&mut WorkerContext) -> PyResult<T>) -> PyResult<T> {
        match self {
            Self::Call(lending) => lending.with(work),
            Self::Served(_) => Err(PyRuntimeError::new_err("only a worker function has a context")),
        }
    }
}

impl Lending {
    /// Runs `work` with the worker.
    ///
    /// # Errors
    /// The call is over, or another thread or the child of a fork asks.
    fn with<T>(&self, work: impl FnOnce(&mut WorkerContext) -> PyResult<T>) -> PyResult<T> {
        if thread::current().id() != self.thread {
            return Err(PyRuntimeError::new_err("a worker's context belongs to the thread that runs the function"));
        }
        if is_child_of_worker() {
            return Err(PyRuntimeError::new_err(
                "this process was forked by a worker function, and the worker's context stays with the parent",
            ));
        }
        let pointer = self.worker.swap(ptr::null_mut(), Ordering::Relaxed);
        // SAFETY: `Lent::new` got an exclusive reference that lasts until the drop of `Lent`, this is its thread, and while the
        // pointer is in use here the field is null.
        let Some(worker) = (unsafe { pointer.as_mut() }) else {
            return Err(PyRuntimeError::new_err(
                "the worker's context can be used during the call only, and not within another use of it",
            ));
        };
        let result = work(worker);
        self.worker.store(pointer, Ordering::Relaxed);
        result
    }
}
