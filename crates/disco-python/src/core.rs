//! The session behind Python's objects, and the calls of it.

use std::mem::ManuallyDrop;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, Weak};
use std::task::{Context, Poll, Waker};

use disco::error::ErrorKind;
use disco::{Arguments, DRef, LaneSession, Value, WorkerId};
use disco_core::sync;
use pyo3::exceptions::PyRuntimeError;
use pyo3::prelude::*;

use crate::errors;
use crate::forks::{FORKED, forks};
use crate::lock::{detached, dropped};
use crate::operation::{Failed, Operation};
use crate::values;

/// The sessions of this process, for its end: handles may be all that is left of one.
static OPEN: Mutex<Vec<Weak<Core>>> = Mutex::new(Vec::new());

/// The sessions that this process has started and that are not freed yet.
pub(crate) fn open() -> Vec<Arc<Core>> {
    let all = sync::lock(&OPEN).clone();
    all.iter().filter_map(Weak::upgrade).filter(|core| core.is_here()).collect()
}

/// A session and the worker functions for Python.
pub(crate) struct Core {
    lanes: ManuallyDrop<Arc<LaneSession>>,
    pub(crate) functions: WorkerFunctions,
    /// How often workers were replaced or added: they lack the functions that were sent before.
    changes: Arc<AtomicU64>,
    /// Whether the program was told of a failure or a loss since the last recovery.
    is_told: Arc<AtomicBool>,
    /// Number of calls: they may change objects.
    calls: AtomicU64,
    /// Whether workers are threads of this process.
    pub(crate) has_threads: bool,
    forks: u32,
}

/// The worker functions of this crate.
#[derive(Clone, Debug)]
pub(crate) struct WorkerFunctions {
    pub(crate) define: DRef,
    pub(crate) keep: DRef,
    pub(crate) export: DRef,
    pub(crate) plain: DRef,
    pub(crate) item: DRef,
    pub(crate) mesh: DRef,
}

impl WorkerFunctions {
    async fn of(lanes: &LaneSession) -> disco::Result<Self> {
        Ok(Self {
            define: lanes.function("disco.python.define").await?,
            keep: lanes.function("disco.python.keep").await?,
            export: lanes.function("disco.python.export").await?,
            plain: lanes.function("disco.python.plain").await?,
            item: lanes.function("disco.python.item").await?,
            mesh: lanes.function("disco.python.mesh").await?,
        })
    }
}

/// A session that has started, on any thread.
pub(crate) struct Started(Arc<LaneSession>, WorkerFunctions);

impl Started {
    pub(crate) async fn of(lanes: Arc<LaneSession>) -> disco::Result<Self> {
        let functions = WorkerFunctions::of(&lanes).await?;
        Ok(Self(lanes, functions))
    }
}

impl Core {
    /// Only threads with the interpreter's lock have and drop it.
    pub(crate) fn new(Started(lanes, functions): Started, has_threads: bool) -> Arc<Self> {
        let changes = Arc::new(AtomicU64::new(0));
        let seen = changes.clone();
        lanes.on_replaced(move |_| {
            seen.fetch_add(1, Ordering::Relaxed);
            Vec::new()
        });
        let core = Arc::new(Self {
            lanes: ManuallyDrop::new(lanes),
            functions,
            changes,
            is_told: Arc::default(),
            calls: AtomicU64::new(0),
            has_threads,
            forks: forks(),
        });
        let mut open = sync::lock(&OPEN);
        open.retain(|core| core.strong_count() > 0);
        open.push(Arc::downgrade(&core));
        core
    }

    /// The session.
    ///
    /// # Errors
    /// This process is the child of a fork.
    pub(crate) fn lanes(&self) -> PyResult<&Arc<LaneSession>> {
        if self.is_here() {
            return Ok(&self.lanes);
        }
        Err(PyRuntimeError::new_err(FORKED))
    }

    /// Whether this process is the one that has started the session.
    pub(crate) fn is_here(&self) -> bool {
        self.forks == forks()
    }

    /// Whether the program was told of a failure or a loss since the last recovery.
    pub(crate) fn is_told(&self) -> bool {
        self.is_told.load(Ordering::Relaxed)
    }

    /// The workers have forgotten their failures.
    pub(crate) fn forget_failure(&self) -> impl FnOnce() + Send + 'static {
        let (is_told, changes) = (self.is_told.clone(), self.changes.clone());
        move || {
            is_told.store(false, Ordering::Relaxed);
            // Workers may have skipped functions that were sent behind a failure.
            changes.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// How often workers were replaced or added.
    pub(crate) fn changes(&self) -> u64 {
        self.changes.load(Ordering::Relaxed)
    }

    /// Number of calls.
    pub(crate) fn calls(&self) -> u64 {
        self.calls.load(Ordering::Relaxed)
    }

    /// Submits a call of all workers.
    pub(crate) fn submit(&self, py: Python<'_>, function: &DRef, args: Arguments) -> PyResult<DRef> {
        let function = function.clone();
        self.submit_with(py, |lanes| async move { lanes.submit(&function, args).await })
    }

    /// Submits a call; if the lanes are full, waits for room.
    pub(crate) fn submit_with<T: Send + 'static, F: Future<Output = disco::Result<T>> + Send + 'static>(
        &self,
        py: Python<'_>,
        run: impl FnOnce(Arc<LaneSession>) -> F,
    ) -> PyResult<T> {
        let lanes = self.lanes()?.clone();
        self.calls.fetch_add(1, Ordering::Relaxed);
        let mut wait = Box::pin(run(lanes));
        // Large arguments are copied here.
        let poll = || wait.as_mut().poll(&mut Context::from_waker(Waker::noop()));
        if let Poll::Ready(submitted) = detached(py, poll) {
            return submitted.map_err(|error| {
                self.note_told(&error);
                errors::raised(py, &error)
            });
        }
        let (sent, sends) = std::sync::mpsc::channel();
        let finish = move |py: Python<'_>, submitted: T| {
            _ = sent.send(submitted);
            Ok(py.None())
        };
        Operation::new(wait, finish).wait(py, None)?;
        sends.try_recv().map_err(|_| PyRuntimeError::new_err("the call was not submitted"))
    }

    /// Notes an error that the program gets.
    fn note_told(&self, error: &disco::Error) {
        note_told(&self.is_told, error);
    }

    /// Begins an operation.
    pub(crate) fn operation<T: Send + 'static, F: Future<Output = disco::Result<T>> + Send + 'static>(
        &self,
        run: impl FnOnce(Arc<LaneSession>) -> F,
        finish: impl for<'py> FnOnce(Python<'py>, T) -> PyResult<Py<PyAny>> + Send + 'static,
    ) -> PyResult<Operation> {
        let (run, is_told) = (run(self.lanes()?.clone()), self.is_told.clone());
        Ok(Operation::new(async move { run.await.inspect_err(|error| note_told(&is_told, error)) }, finish))
    }

    /// An operation that has a reply of all workers, whose failures are raised together.
    pub(crate) fn operation_of_all<T: Send + 'static, F: Future<Output = disco::Result<T>> + Send + 'static>(
        &self,
        run: impl FnOnce(Arc<LaneSession>) -> F,
        finish: impl for<'py> FnOnce(Python<'py>, T) -> PyResult<Py<PyAny>> + Send + 'static,
    ) -> PyResult<Operation> {
        let lanes = self.lanes()?.clone();
        let (run, is_told) = (run(lanes.clone()), self.is_told.clone());
        let all = async move {
            run.await.inspect_err(|error| note_told(&is_told, error)).map_err(|error| {
                match (&error, lanes.failures()) {
                    (disco::Error::Worker(_), failures) if failures.len() > 1 && !is_cancelled(&error) => {
                        Failed::Several(error, failures.into_iter().map(disco::Error::Worker).collect())
                    }
                    _ => Failed::One(error),
                }
            })
        };
        Ok(Operation::new(all, finish))
    }

    /// The object of one worker, or those of all, in order.
    pub(crate) fn get(&self, handle: &DRef, is_python: bool, worker: Option<WorkerId>) -> PyResult<Operation> {
        let (handle, export) = (handle.clone(), self.functions.export.clone());
        let get = async move |lanes: Arc<LaneSession>| {
            let of = async |handle: &DRef| match worker {
                Some(worker) => Ok(vec![lanes.value(handle, worker).await?]),
                None => lanes.values(handle).await,
            };
            if !is_python {
                return of(&handle).await;
            }
            match lanes.call(&export, (&handle,)).await {
                Ok(exported) => match of(&exported).await? {
                    // The reply is the failure of the call that should have made the object.
                    values if values.iter().any(values::is_failed) => of(&handle).await,
                    values => Ok(values),
                },
                Err(refused) => Err(own_failure(refused, of(&handle).await.err())),
            }
        };
        let decode = move |py: Python<'_>, found: Vec<Value>| match (worker, &found[..]) {
            (Some(_), [value]) => Ok(values::decode(py, value)?.unbind()),
            (_, all) => {
                let objects = all.iter().map(|value| values::decode(py, value)).collect::<PyResult<Vec<_>>>()?;
                Ok(objects.into_pyobject(py)?.unbind().into_any())
            }
        };
        if worker.is_some() { self.operation(get, decode) } else { self.operation_of_all(get, decode) }
    }
}

/// The error of a get that was refused because an earlier call has failed: the failure of the object's own call, if that is
/// the one. A reply without the object itself says that the object is no value.
fn own_failure(refused: disco::Error, found: Option<disco::Error>) -> disco::Error {
    match (&refused, found) {
        (disco::Error::Earlier { .. }, Some(found @ disco::Error::Worker(_))) if !is_of_read(&found) => found,
        _ => refused,
    }
}

fn note_told(is_told: &AtomicBool, error: &disco::Error) {
    use disco::Error::{Deadline, Earlier, Lost, Stalled, Worker};
    // After a cancelled call, the session goes on.
    if !is_cancelled(error) && matches!(error, Worker(_) | Earlier { .. } | Lost(_) | Deadline { .. } | Stalled { .. })
    {
        is_told.store(true, Ordering::Relaxed);
    }
}

fn is_cancelled(error: &disco::Error) -> bool {
    matches!(error, disco::Error::Worker(failure) if failure.kind == ErrorKind::Cancelled)
}

fn is_of_read(error: &disco::Error) -> bool {
    matches!(error, disco::Error::Worker(failure) if matches!(&*failure.operation, "get" | "get_all" | "reply"))
}

impl Drop for Core {
    fn drop(&mut self) {
        // SAFETY: nobody uses the field after the drop.
        #[allow(unsafe_code)]
        let lanes = unsafe { ManuallyDrop::take(&mut self.lanes) };
        if self.is_here() {
            dropped(lanes);
        } else {
            // Its threads and connections are the parent's.
            std::mem::forget(lanes);
        }
    }
}

/// The worker with this number; of a number that is too large, one that no session has.
pub(crate) fn worker_of(number: usize) -> WorkerId {
    WorkerId::new(u32::try_from(number).unwrap_or(u32::MAX))
}
