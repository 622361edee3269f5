//! Sessions, on the controller.

use std::path::PathBuf;
use std::sync::Arc;
use std::thread;

use disco::{Arguments, DRef, LaneSession, SessionKind, Value, WorkerId};
use futures_channel::oneshot;
use pyo3::exceptions::{PyRuntimeError, PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyList, PyTuple};

use crate::core::{self, Core, Started, worker_of};
use crate::errors;
use crate::interrupts::block_interrupts;
use crate::lock::detached;
use crate::mesh::Mesh;
use crate::operation::Operation;
use crate::options::{self, builder};
use crate::reference::Ref;
use crate::results::Results;
use crate::{saved, values};

/// A session: the calls return at once, and the others are operations.
#[pyclass(frozen, weakref, module = "disco._disco")]
pub(crate) struct Session(Arc<Core>);

impl Session {
    fn of(py: Python<'_>, started: Started, has_threads: bool) -> PyResult<Py<PyAny>> {
        Ok(Py::new(py, Self(Core::new(started, has_threads)))?.into_any())
    }

    fn submit(&self, py: Python<'_>, function: &DRef, args: Arguments, is_python: bool) -> PyResult<Ref> {
        Ok(Ref::new(&self.0, self.0.submit(py, function, args)?, is_python))
    }

    /// A handle to objects that functions of other languages take.
    fn plain(&self, reference: &Bound<'_, Ref>) -> PyResult<DRef> {
        let given = reference.get();
        if !given.is_python {
            return Ok(DRef::clone(&given.handle));
        }
        let mut args = Arguments::with_capacity(1);
        args.push(&*given.handle);
        self.0.submit(reference.py(), &self.0.functions.plain, args)
    }

    /// The arguments of a call, as its function takes them.
    fn arguments(
        &self,
        function: &Bound<'_, Ref>,
        args: &Bound<'_, PyTuple>,
        kwargs: Option<&Bound<'_, PyDict>>,
    ) -> PyResult<Arguments> {
        let kwargs = kwargs.filter(|kwargs| !kwargs.is_empty());
        let mut given = Arguments::with_capacity(args.len() + 1 + kwargs.map_or(0, |kwargs| kwargs.len()));
        if !function.get().is_python {
            if kwargs.is_some() {
                return Err(PyTypeError::new_err("a function of Rust, C or C++ has no arguments with names"));
            }
            for object in args.iter() {
                match object.cast::<Ref>() {
                    Ok(reference) => given.push(self.plain(reference)?),
                    Err(_) => given.push(values::plain(&object)?),
                }
            }
            return Ok(given);
        }
        given.push(match kwargs {
            Some(kwargs) => {
                let name = |name: Bound<'_, PyAny>| name.extract::<String>().map(Value::from);
                Value::from(kwargs.keys().iter().map(name).collect::<PyResult<Vec<_>>>()?)
            }
            None => Value::None,
        });
        let handles = PyList::empty(args.py());
        let mut push = |object: &Bound<'_, PyAny>| -> PyResult<()> {
            match object.cast::<Ref>() {
                Ok(reference) => given.push(&*reference.get().handle),
                Err(_) => given.push(values::encode_with(object, Some(&handles))?),
            }
            Ok(())
        };
        args.iter().try_for_each(|object| push(&object))?;
        if let Some(kwargs) = kwargs {
            kwargs.values().iter().try_for_each(|object| push(&object))?;
        }
        // Those in objects.
        for reference in handles.iter() {
            given.push(&*reference.cast::<Ref>()?.get().handle);
        }
        Ok(given)
    }

    fn check_count(&self, given: usize, what: &str) -> PyResult<()> {
        let workers = self.size()?;
        if given == workers {
            return Ok(());
        }
        Err(PyValueError::new_err(format!("{given} {what} for {workers} workers")))
    }

    /// An operation whose result is a handle.
    fn handle<F: Future<Output = disco::Result<DRef>> + Send + 'static>(
        &self,
        run: impl FnOnce(Arc<LaneSession>) -> F,
        is_python: bool,
    ) -> PyResult<Operation> {
        let core = self.0.clone();
        self.0.operation(run, move |py, handle| Ok(Py::new(py, Ref::new(&core, handle, is_python))?.into_any()))
    }
}

async fn started_with(lanes: Arc<LaneSession>, backend: Option<String>, devices: Vec<i32>) -> disco::Result<Started> {
    if let Some(backend) = backend {
        lanes.init_ccl(&backend, &devices).await?;
    }
    Started::of(lanes).await
}

fn nothing(py: Python<'_>, (): ()) -> PyResult<Py<PyAny>> {
    Ok(py.None())
}

fn numbers(workers: &[WorkerId]) -> Vec<usize> {
    workers.iter().map(|worker| worker.index()).collect()
}

#[pymethods]
impl Session {
    /// Starts a session with communicators of `backend`, if it is given, on a thread of its own. The operation's result is the
    /// session.
    #[staticmethod]
    fn start(options: &Bound<'_, PyDict>, backend: Option<String>, devices: Vec<i32>) -> PyResult<Operation> {
        let (builder, kind) = builder(options)?;
        let (started, starts) = oneshot::channel();
        let run = move || {
            block_interrupts();
            let start = || disco::block_on(started_with(Arc::new(builder.start()?), backend, devices));
            // If nobody waits any more, the session ends here.
            _ = started.send(start());
        };
        thread::Builder::new().name("disco-start".into()).spawn(run)?;
        let wait =
            async { starts.await.unwrap_or_else(|_| Err(disco::Error::State("the start has panicked".to_owned()))) };
        let has_threads = kind == SessionKind::Threads;
        Ok(Operation::new(wait, move |py, started| Self::of(py, started, has_threads)))
    }

    /// A session of some workers of this one, with communicators of `backend`, if it is given.
    fn subset(
        &self,
        workers: Vec<u32>,
        groups: usize,
        backend: Option<String>,
        collective_deadline: Option<f64>,
    ) -> PyResult<Operation> {
        let limit = collective_deadline.map(|given| options::seconds("collective_deadline", given)).transpose()?;
        let start = move |lanes: Arc<LaneSession>| async move {
            started_with(lanes.subset_within(workers, groups, limit).await?, backend, Vec::new()).await
        };
        let has_threads = self.0.has_threads;
        self.0.operation(start, move |py, started| Self::of(py, started, has_threads))
    }

    /// Number of workers.
    #[getter]
    pub(crate) fn size(&self) -> PyResult<usize> {
        Ok(self.0.lanes()?.world().size())
    }

    /// Number of groups.
    #[getter]
    fn groups(&self) -> PyResult<usize> {
        Ok(self.0.lanes()?.world().groups())
    }

    /// How often workers were replaced or added.
    #[getter]
    fn changes(&self) -> u64 {
        self.0.changes()
    }

    /// A function of Rust, C or C++ by its name.
    fn function(&self, name: String) -> PyResult<Operation> {
        self.handle(|lanes: Arc<LaneSession>| async move { lanes.function(&name).await }, false)
    }

    /// Sends a Python function, as `disco._functions` describes it.
    fn define(&self, name: &str, described: &Bound<'_, PyAny>) -> PyResult<Ref> {
        let mut args = Arguments::with_capacity(2);
        args.push(name);
        args.push(values::encode(described)?);
        self.submit(described.py(), &self.0.functions.define, args, true)
    }

    /// Calls a function on all workers.
    #[pyo3(signature = (function, args, kwargs = None))]
    fn call(
        &self,
        function: &Bound<'_, Ref>,
        args: &Bound<'_, PyTuple>,
        kwargs: Option<&Bound<'_, PyDict>>,
    ) -> PyResult<Ref> {
        let given = self.arguments(function, args, kwargs)?;
        self.submit(args.py(), &function.get().handle, given, function.get().is_python)
    }

    /// Calls a function on some workers.
    #[pyo3(signature = (workers, function, args, kwargs = None))]
    fn call_on(
        &self,
        workers: Vec<u32>,
        function: &Bound<'_, Ref>,
        args: &Bound<'_, PyTuple>,
        kwargs: Option<&Bound<'_, PyDict>>,
    ) -> PyResult<Ref> {
        let given = self.arguments(function, args, kwargs)?;
        let (py, of) = (args.py(), DRef::clone(&function.get().handle));
        let submit = |lanes: Arc<LaneSession>| async move { lanes.call_on(workers, &of, given).await };
        Ok(Ref::new(&self.0, self.0.submit_with(py, submit)?, function.get().is_python))
    }

    /// Calls a function with other arguments on each worker: a tuple for each, in order.
    fn call_each(&self, function: &Bound<'_, Ref>, args: Vec<Bound<'_, PyTuple>>) -> PyResult<Ref> {
        self.check_count(args.len(), "tuples of arguments")?;
        let given = args.iter().map(|args| self.arguments(function, args, None)).collect::<PyResult<Vec<_>>>()?;
        let (py, of) = (function.py(), DRef::clone(&function.get().handle));
        let submit = |lanes: Arc<LaneSession>| async move {
            let mut given = given.into_iter();
            lanes.call_each(&of, |_| given.next().unwrap_or_default()).await
        };
        Ok(Ref::new(&self.0, self.0.submit_with(py, submit)?, function.get().is_python))
    }

    /// Calls a function that emits results while it runs.
    #[pyo3(signature = (function, args, kwargs = None))]
    fn call_streaming(
        &self,
        function: &Bound<'_, Ref>,
        args: &Bound<'_, PyTuple>,
        kwargs: Option<&Bound<'_, PyDict>>,
    ) -> PyResult<Results> {
        let given = self.arguments(function, args, kwargs)?;
        Results::of(args.py(), &self.0, function.get(), given)
    }

    /// Cancels a call that has not ended.
    fn cancel(&self, call: &Bound<'_, Ref>, why: &str) -> PyResult<()> {
        let (py, handle) = (call.py(), &call.get().handle);
        let lanes = self.0.lanes()?;
        detached(py, || lanes.cancel(handle, why)).map_err(|error| errors::raised(py, &error))
    }

    /// Sends the mesh of the session.
    fn set_mesh(&self, mesh: &Bound<'_, Mesh>) -> PyResult<()> {
        let py = mesh.py();
        mesh.get().0.check(self.size()?).map_err(|error| errors::raised(py, &error))?;
        let mut args = Arguments::with_capacity(1);
        args.push(mesh.get().0.to_string());
        self.0.submit(py, &self.0.functions.mesh, args).map(drop)
    }

    /// The same object on all workers.
    fn put(&self, object: &Bound<'_, PyAny>) -> PyResult<Ref> {
        let mut args = Arguments::with_capacity(1);
        args.push(values::encode(object)?);
        self.submit(object.py(), &self.0.functions.keep, args, true)
    }

    /// Another object for each worker.
    fn put_each(&self, objects: &Bound<'_, PyAny>) -> PyResult<Operation> {
        let objects = objects.try_iter()?.map(|object| values::encode(&object?)).collect::<PyResult<Vec<_>>>()?;
        self.check_count(objects.len(), "objects")?;
        let keep = self.0.functions.keep.clone();
        let send = |lanes: Arc<LaneSession>| async move {
            let values = lanes.call(&keep, (Value::None,)).await?;
            for (worker, object) in (0..).map(WorkerId::new).zip(objects) {
                lanes.set(&values, worker, object).await?;
            }
            lanes.call(&keep, (&values,)).await
        };
        self.handle(send, true)
    }

    /// The object of one worker.
    fn get(&self, reference: &Bound<'_, Ref>, worker: i64) -> PyResult<Operation> {
        let worker = reference.get().worker(worker)?;
        self.0.get(&reference.get().handle, reference.get().is_python, Some(worker))
    }

    /// Waits until all workers, or one, have executed all commands so far.
    #[pyo3(signature = (worker = None))]
    fn sync(&self, worker: Option<usize>) -> PyResult<Operation> {
        match worker {
            Some(worker) => {
                let worker = worker_of(worker);
                self.0.operation(move |lanes| async move { lanes.sync_worker(worker).await }, nothing)
            }
            None => self.0.operation_of_all(|lanes| async move { lanes.sync_all().await }, nothing),
        }
    }

    /// Makes communicators of a backend.
    fn init_ccl(&self, backend: String, devices: Vec<i32>) -> PyResult<Operation> {
        let forget = self.0.forget_failure();
        let init = |lanes: Arc<LaneSession>| async move { lanes.init_ccl(&backend, &devices).await.map(|()| forget()) };
        self.0.operation(init, nothing)
    }

    /// Whether the communicators of all workers take operations.
    fn is_whole(&self) -> PyResult<Operation> {
        let ask = |lanes: Arc<LaneSession>| async move { lanes.is_whole().await };
        self.0.operation(ask, |py, is_whole| Ok(is_whole.into_pyobject(py)?.to_owned().into_any().unbind()))
    }

    /// Lets the workers forget a failure.
    fn recover(&self) -> PyResult<Operation> {
        let forget = self.0.forget_failure();
        let recover = |lanes: Arc<LaneSession>| async move { lanes.recover().await.map(|()| forget()) };
        self.0.operation(recover, nothing)
    }

    /// Starts new workers in the places of lost ones: the new workers, and the epoch.
    fn replace_lost(&self) -> PyResult<Operation> {
        let forget = self.0.forget_failure();
        let replace = |lanes: Arc<LaneSession>| async move { lanes.replace_lost().await.inspect(|_| forget()) };
        self.0.operation(replace, |py, replaced| {
            let result = (numbers(&replaced.workers), replaced.epoch);
            Ok(result.into_pyobject(py)?.into_any().unbind())
        })
    }

    /// Changes the number of workers: for each worker before its number now, the new workers, and the epoch.
    fn resize(&self, workers: usize) -> PyResult<Operation> {
        let forget = self.0.forget_failure();
        let resize = move |lanes: Arc<LaneSession>| async move { lanes.resize(workers).await.inspect(|_| forget()) };
        self.0.operation(resize, |py, resized| {
            let before: Vec<_> = resized.numbers.iter().map(|number| number.map(WorkerId::index)).collect();
            let result = (before, numbers(&resized.workers), resized.epoch);
            Ok(result.into_pyobject(py)?.into_any().unbind())
        })
    }

    /// Ends the session and its workers.
    fn shutdown(&self) -> PyResult<Operation> {
        self.0.operation(|lanes| async move { lanes.shutdown().await }, nothing)
    }

    /// Saves the tensors of handles, each with a layout, in a folder of checkpoints.
    fn save(
        &self,
        folder: PathBuf,
        step: u64,
        tensors: Vec<(String, Bound<'_, Ref>, Bound<'_, PyAny>)>,
        notes: String,
        keep: Option<usize>,
    ) -> PyResult<Operation> {
        let entry = |(name, reference, layout): (String, Bound<'_, Ref>, Bound<'_, PyAny>)| {
            let layout = saved::layout(&name, &layout)?;
            Ok((name, self.plain(&reference)?, layout))
        };
        let tensors = tensors.into_iter().map(entry).collect::<PyResult<Vec<_>>>()?;
        saved::save(&self.0, folder, step, tensors, notes, keep)
    }

    /// Loads the newest checkpoint of a folder.
    fn load(&self, folder: PathBuf) -> PyResult<Operation> {
        saved::load(&self.0, folder)
    }

    /// Opens a shared library on all workers.
    fn load_library(&self, path: PathBuf, send: bool) -> PyResult<Operation> {
        saved::load_library(&self.0, path, send)
    }

    /// A function that a library exports.
    fn library_function(&self, library: &Bound<'_, Ref>, name: String) -> PyResult<Operation> {
        saved::library_function(&self.0, &library.get().handle, name)
    }

    /// A function that a library has registered with libtvm_ffi.
    fn global_function(&self, name: String) -> PyResult<Operation> {
        saved::global_function(&self.0, name)
    }

    /// The state of the session as JSON.
    fn status(&self) -> PyResult<String> {
        serde_json::to_string(&self.0.lanes()?.status()).map_err(|error| PyRuntimeError::new_err(error.to_string()))
    }

    /// Whether the program was told of a failure or a loss since the last recovery.
    #[getter]
    fn is_told(&self) -> bool {
        self.0.is_told()
    }

    /// Whether workers are threads of this process.
    #[getter]
    fn has_threads(&self) -> bool {
        self.0.has_threads
    }

    /// The sessions that this process has started and that are not freed yet.
    #[staticmethod]
    fn open() -> Vec<Self> {
        core::open().into_iter().map(Self).collect()
    }
}
