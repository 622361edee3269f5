//! A Python function's access to its worker, during the call and on its thread.

#![allow(unsafe_code)]

use std::marker::PhantomData;
use std::ptr;
use std::sync::Arc;
use std::sync::atomic::{AtomicPtr, Ordering};
use std::thread::{self, ThreadId};

use disco::WorkerContext;
use pyo3::exceptions::PyRuntimeError;
use pyo3::prelude::*;

use crate::forks::is_child_of_worker;

/// The worker of a call, which Python's objects share.
pub(crate) struct Access {
    /// Null while a method uses it, and after the call.
    worker: AtomicPtr<WorkerContext>,
    thread: ThreadId,
}

/// An access that lasts until this value is dropped.
pub(crate) struct Lent<'a>(pub(crate) Arc<Access>, PhantomData<&'a mut WorkerContext>);

impl<'a> Lent<'a> {
    /// Lends the worker to Python.
    pub(crate) fn new(worker: &'a mut WorkerContext) -> Self {
        let access = Access { worker: AtomicPtr::new(worker), thread: thread::current().id() };
        Self(Arc::new(access), PhantomData)
    }
}

impl Drop for Lent<'_> {
    fn drop(&mut self) {
        self.0.worker.store(ptr::null_mut(), Ordering::Relaxed);
    }
}

impl Access {
    /// Runs `work` with the worker.
    ///
    /// # Errors
    /// The call is over, or another thread or the child of a fork asks.
    pub(crate) fn with<T>(&self, work: impl FnOnce(&mut WorkerContext) -> PyResult<T>) -> PyResult<T> {
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
