//! The results that a call sends while it runs.

use std::future::poll_fn;
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll};

use disco::{Arguments, DRef, LaneSession, Value, WorkerId};
use disco_core::sync;
use pyo3::exceptions::{PyStopAsyncIteration, PyStopIteration};
use pyo3::prelude::*;
use pyo3::types::PyType;

use crate::core::Core;
use crate::forks::forks;
use crate::lock::dropped;
use crate::operation::Operation;
use crate::reference::{Ref, coroutine};
use crate::values;

/// The results that a running call sends by `ctx.emit`, to iterate over, also with `async for`: pairs of a worker's number and a
/// value, in the order of their arrival. The iteration ends with the call, and raises the call's failure.
///
/// `close`, the end of a `with` statement, and dropping it before the end cancel the call. One thread or task iterates.
#[pyclass(frozen, module = "disco._disco")]
pub(crate) struct Results {
    call: Py<Ref>,
    core: Arc<Core>,
    stream: Arc<Mutex<Option<Stream>>>,
    /// Number of forks when it was made.
    forks: u32,
}

/// What the stream has, one after the other.
enum Item {
    /// The call is submitted.
    Call(DRef),
    Result(WorkerId, Value),
}

/// A stream with the session that it borrows: a future that puts one item after the other into `item`.
struct Stream {
    running: Option<Pin<Box<dyn Future<Output = ()> + Send>>>,
    item: Arc<Mutex<Option<disco::Result<Item>>>>,
}

impl Stream {
    fn of(lanes: Arc<LaneSession>, function: DRef, args: Arguments) -> Self {
        let item = Arc::new(Mutex::new(None));
        let put = item.clone();
        let running = async move {
            let put = async |item| {
                *sync::lock(&put) = Some(item);
                // Goes on once the item is taken.
                poll_fn(|_| if sync::lock(&put).is_none() { Poll::Ready(()) } else { Poll::Pending }).await;
            };
            match lanes.call_streaming(&function, args).await {
                Ok(mut results) => {
                    put(Ok(Item::Call(results.call().clone()))).await;
                    while let Some(result) = results.next().await {
                        put(result.map(|(worker, value)| Item::Result(worker, value))).await;
                    }
                }
                Err(error) => put(Err(error)).await,
            }
        };
        Self { running: Some(Box::pin(running)), item }
    }

    fn poll_next(&mut self, context: &mut Context<'_>) -> Poll<disco::Result<Option<Item>>> {
        let Some(running) = &mut self.running else { return Poll::Ready(Ok(None)) };
        let has_ended = running.as_mut().poll(context).is_ready();
        if has_ended {
            self.running = None;
        }
        match sync::lock(&self.item).take().transpose() {
            Ok(None) if !has_ended => Poll::Pending,
            item => Poll::Ready(item),
        }
    }
}

impl Results {
    /// Calls `function`.
    pub(crate) fn of(py: Python<'_>, core: &Arc<Core>, function: &Ref, args: Arguments) -> PyResult<Self> {
        let handle = DRef::clone(&function.handle);
        let submit = async move |lanes: Arc<LaneSession>| {
            let mut stream = Stream::of(lanes, handle, args);
            match poll_fn(|context| stream.poll_next(context)).await? {
                Some(Item::Call(call)) => Ok((call, stream)),
                _ => Err(disco::Error::State("the call has ended before it was submitted".to_owned())),
            }
        };
        let (call, stream) = core.submit_with(py, submit)?;
        let call = Py::new(py, Ref::new(core, call, function.is_python))?;
        Ok(Self { call, core: core.clone(), stream: Arc::new(Mutex::new(Some(stream))), forks: forks() })
    }

    /// The next result; at the end the error of `end`.
    fn take(&self, end: fn() -> PyErr) -> PyResult<Operation> {
        let stream = self.stream.clone();
        let next = move |_| {
            poll_fn(move |context| match &mut *sync::lock(&stream) {
                Some(stream) => stream.poll_next(context),
                None => Poll::Ready(Ok(None)),
            })
        };
        self.core.operation(next, move |py, item| match item {
            Some(Item::Result(worker, value)) => {
                let result = (worker.index(), values::decode(py, &value)?);
                Ok(result.into_pyobject(py)?.into_any().unbind())
            }
            _ => Err(end()),
        })
    }

    /// Without the rest, which cancels the call.
    fn end(&self) {
        if self.forks != forks() {
            // Its session is the parent's, and a thread that the fork has left behind may have had the lock.
            std::mem::forget(self.stream.clone());
            return;
        }
        let stream = sync::lock(&self.stream).take();
        dropped(stream);
    }
}

impl Drop for Results {
    fn drop(&mut self) {
        self.end();
    }
}

#[pymethods]
impl Results {
    /// The handle of the call, whose objects are what the function returns.
    #[getter]
    fn call(&self, py: Python<'_>) -> Py<Ref> {
        self.call.clone_ref(py)
    }

    /// The next result. Waits at most `timeout` seconds; then it can be waited for again. Raises `StopIteration` at the end.
    #[pyo3(signature = (timeout = None))]
    fn next(&self, py: Python<'_>, timeout: Option<f64>) -> PyResult<Py<PyAny>> {
        self.take(|| PyStopIteration::new_err(()))?.wait(py, timeout)
    }

    /// Cancels the call, unless it has ended.
    fn close(&self) {
        self.end();
    }

    fn __iter__(slf: PyRef<'_, Self>) -> PyRef<'_, Self> {
        slf
    }

    fn __next__(&self, py: Python<'_>) -> PyResult<Py<PyAny>> {
        self.next(py, None)
    }

    fn __aiter__(slf: PyRef<'_, Self>) -> PyRef<'_, Self> {
        slf
    }

    fn __anext__<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        coroutine(py, self.take(|| PyStopAsyncIteration::new_err(()))?)
    }

    fn __enter__(slf: PyRef<'_, Self>) -> PyRef<'_, Self> {
        slf
    }

    fn __exit__(&self, _kind: &Bound<'_, PyAny>, _error: &Bound<'_, PyAny>, _trace: &Bound<'_, PyAny>) {
        self.end();
    }

    /// `Results[float]`, for annotations.
    #[classmethod]
    fn __class_getitem__<'py>(class: &Bound<'py, PyType>, _item: &Bound<'py, PyAny>) -> Bound<'py, PyType> {
        class.clone()
    }
}
