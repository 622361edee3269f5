//! Handles to results.

use std::mem::ManuallyDrop;
use std::sync::{Arc, Mutex};

use disco::{Arguments, DRef, WorkerId};
use disco_core::sync;
use pyo3::exceptions::{PyIndexError, PyTypeError};
use pyo3::prelude::*;
use pyo3::types::{PyTuple, PyType};

use crate::core::{Core, worker_of};
use crate::forks::forks;
use crate::operation::Operation;

/// A handle to one object on each worker. Dropping it frees the objects. It is no sequence: `split` makes handles to the items
/// of a result.
#[pyclass(frozen, module = "disco._disco")]
pub(crate) struct Ref {
    core: Arc<Core>,
    pub(crate) handle: ManuallyDrop<DRef>,
    /// Whether a Python function has made the objects.
    pub(crate) is_python: bool,
    /// Waits that have passed their limits, and the number of calls before them: until the next call, they can go on.
    waits: Mutex<Vec<(Option<WorkerId>, u64, Operation)>>,
    /// Number of forks when it was made.
    forks: u32,
}

impl Ref {
    pub(crate) fn new(core: &Arc<Core>, handle: DRef, is_python: bool) -> Self {
        Self {
            core: core.clone(),
            handle: ManuallyDrop::new(handle),
            is_python,
            waits: Mutex::default(),
            forks: forks(),
        }
    }
}

impl Ref {
    /// The number of a worker.
    ///
    /// # Errors
    /// There is no such worker.
    pub(crate) fn worker(&self, number: i64) -> PyResult<WorkerId> {
        let workers = self.core.lanes()?.world().size();
        let worker = usize::try_from(number).ok().filter(|worker| *worker < workers).map(worker_of);
        worker.ok_or_else(|| PyIndexError::new_err(format!("there is no worker {number}: the session has {workers}")))
    }

    /// Waits for the object of one worker, or those of all. A wait that has passed its limit goes on the next time.
    fn wait(&self, py: Python<'_>, worker: Option<WorkerId>, timeout: Option<f64>) -> PyResult<Py<PyAny>> {
        let calls = self.core.calls();
        let earlier = {
            let mut waits = sync::lock(&self.waits);
            let found = waits.iter().position(|(of, ..)| *of == worker).map(|index| waits.swap_remove(index));
            found.filter(|(_, before, _)| *before == calls)
        };
        let operation = match earlier {
            Some((.., operation)) => operation,
            None => self.core.get(&self.handle, self.is_python, worker)?,
        };
        let result = operation.wait(py, timeout);
        if operation.is_running() {
            sync::lock(&self.waits).push((worker, calls, operation));
        }
        result
    }
}

impl Drop for Ref {
    fn drop(&mut self) {
        // A lock of the handle may have been held by a thread that a fork has left behind.
        if self.forks == forks() {
            // SAFETY: nobody uses the handle after the drop.
            #[allow(unsafe_code)]
            unsafe {
                ManuallyDrop::drop(&mut self.handle);
            }
        }
    }
}

#[pymethods]
impl Ref {
    /// The object of one worker, after all calls so far. Waits at most `timeout` seconds.
    #[pyo3(signature = (worker = 0, timeout = None))]
    fn get(&self, py: Python<'_>, worker: i64, timeout: Option<f64>) -> PyResult<Py<PyAny>> {
        self.wait(py, Some(self.worker(worker)?), timeout)
    }

    /// The objects of all workers, in order, after all calls so far. Waits at most `timeout` seconds.
    #[pyo3(signature = (timeout = None))]
    fn get_all(&self, py: Python<'_>, timeout: Option<f64>) -> PyResult<Py<PyAny>> {
        self.wait(py, None, timeout)
    }

    /// Handles to the items of a result that is a tuple or a list of `count` items.
    fn split<'py>(&self, py: Python<'py>, count: i64) -> PyResult<Bound<'py, PyTuple>> {
        let item = |index| {
            let mut args = Arguments::with_capacity(3);
            args.push(&*self.handle);
            args.push(index);
            args.push(count);
            let handle = self.core.submit(py, &self.core.functions.item, args)?;
            Py::new(py, Self::new(&self.core, handle, true))
        };
        PyTuple::new(py, (0..count).map(item).collect::<PyResult<Vec<_>>>()?)
    }

    /// The object of one worker, to `get` or `await`.
    fn __getitem__(slf: &Bound<'_, Self>, worker: i64) -> PyResult<Part> {
        Ok(Part { of: slf.clone().unbind(), worker: slf.get().worker(worker)? })
    }

    /// Else Python would take the numbers of the workers for those of items.
    fn __iter__(&self) -> PyResult<()> {
        Err(PyTypeError::new_err(
            "a handle has no items to iterate over: `split(n)` makes handles to the n items of each worker's result, `get_all()` \
             returns the results of all workers, and `ref[i]` is that of worker i",
        ))
    }

    /// The objects of all workers, for asyncio.
    fn __await__<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        awaited(py, self.core.get(&self.handle, self.is_python, None)?)
    }

    fn __reduce__(&self) -> PyResult<()> {
        Err(PyTypeError::new_err(
            "a handle stays with its program: it can be an argument of a call, or inside of one, but neither a global name of a worker \
             function nor in an object that is put on the workers",
        ))
    }

    fn __repr__(&self) -> String {
        format!("<disco.Ref {}>", self.handle.register())
    }

    /// `Ref[float]`, for annotations.
    #[classmethod]
    fn __class_getitem__<'py>(class: &Bound<'py, PyType>, _item: &Bound<'py, PyAny>) -> Bound<'py, PyType> {
        class.clone()
    }

    /// The number of the register, for messages.
    #[getter]
    fn register(&self) -> usize {
        self.handle.register().index()
    }
}

/// The object of one worker behind a handle.
#[pyclass(frozen, module = "disco._disco")]
pub(crate) struct Part {
    of: Py<Ref>,
    worker: WorkerId,
}

#[pymethods]
impl Part {
    /// As of a `Ref`.
    #[classmethod]
    fn __class_getitem__<'py>(class: &Bound<'py, PyType>, _item: &Bound<'py, PyAny>) -> Bound<'py, PyType> {
        class.clone()
    }

    /// The object, after all calls so far. Waits at most `timeout` seconds.
    #[pyo3(signature = (timeout = None))]
    fn get(&self, py: Python<'_>, timeout: Option<f64>) -> PyResult<Py<PyAny>> {
        self.of.get().wait(py, Some(self.worker), timeout)
    }

    fn __repr__(&self) -> String {
        format!("<disco.Part of {} in {}>", self.of.get().handle.register(), self.worker)
    }

    fn __await__<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        let of = self.of.get();
        awaited(py, of.core.get(&of.handle, of.is_python, Some(self.worker))?)
    }
}

/// The iterator that `await` takes.
fn awaited(py: Python<'_>, operation: Operation) -> PyResult<Bound<'_, PyAny>> {
    coroutine(py, operation)?.call_method0("__await__")
}

/// What a program awaits for the result of an operation.
pub(crate) fn coroutine(py: Python<'_>, operation: Operation) -> PyResult<Bound<'_, PyAny>> {
    py.import("disco.aio")?.getattr("wait")?.call1((operation,))
}
