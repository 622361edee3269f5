//! A Python function's view of its worker.

use std::cell::{OnceCell, RefCell};
use std::sync::Arc;

use disco::{DType, Scope, WorkerContext};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyTuple};

use crate::access::{Access, Lent};
use crate::communicator::Communicator;
use crate::dtype::dtype_of;
use crate::errors;
use crate::lock::detached;
use crate::mesh::Mesh;
use crate::shapes::shape_of;
use crate::store::Store;
use crate::{tensor, values};

/// The worker that runs a function, during the call. It is also the `Communicator` of all workers.
#[pyclass(frozen, extends = Communicator, module = "disco._disco")]
pub(crate) struct Context {
    pub(crate) access: Arc<Access>,
}

/// The state of a worker: a dict of the program.
#[derive(Default)]
struct State(OnceCell<Py<PyDict>>);

/// The mesh that the program has given the session.
#[derive(Default)]
struct MeshOfSession(RefCell<Option<disco::Mesh>>);

/// Sets the mesh that `along` uses.
pub(crate) fn set_mesh(worker: &mut WorkerContext, mesh: String) -> Result<(), disco::Error> {
    let mesh = mesh.parse()?;
    worker.state::<MeshOfSession>().0.replace(Some(mesh));
    Ok(())
}

impl Context {
    /// The context of a worker that is lent to Python.
    pub(crate) fn of<'py>(py: Python<'py>, lent: &Lent<'_>) -> PyResult<Bound<'py, Self>> {
        let comm = Communicator { access: lent.0.clone(), scope: Scope::World, starts: false };
        Bound::new(py, PyClassInitializer::from(comm).add_subclass(Self { access: lent.0.clone() }))
    }

    fn with<T>(&self, work: impl FnOnce(&mut WorkerContext) -> PyResult<T>) -> PyResult<T> {
        self.access.with(work)
    }

    fn within(&self, scope: Scope) -> Communicator {
        Communicator { access: self.access.clone(), scope, starts: false }
    }
}

#[pymethods]
impl Context {
    /// Number of this worker, from 0; its rank in collectives.
    #[getter]
    fn worker(&self) -> PyResult<usize> {
        self.with(|worker| Ok(worker.worker().index()))
    }

    /// Number of workers.
    #[getter]
    fn world(&self) -> PyResult<usize> {
        self.with(|worker| Ok(worker.world().size()))
    }

    /// Number of this worker's group, from 0.
    #[getter]
    fn group(&self) -> PyResult<usize> {
        self.with(|worker| Ok(worker.group().index()))
    }

    /// Number of groups.
    #[getter]
    fn groups(&self) -> PyResult<usize> {
        self.with(|worker| Ok(worker.world().groups()))
    }

    /// Number of workers of a group.
    #[getter]
    fn group_size(&self) -> PyResult<usize> {
        self.with(|worker| Ok(worker.world().group_size()))
    }

    /// The device of this worker's arrays: `cpu`, `cuda:0`.
    #[getter]
    fn device(&self) -> PyResult<String> {
        self.with(|worker| Ok(worker.device().to_string()))
    }

    /// The worker's stream as a number, for `torch.cuda.ExternalStream`; 0 on the host.
    #[getter]
    fn stream(&self) -> PyResult<usize> {
        self.with(|worker| Ok(worker.queue().raw() as usize))
    }

    /// A dict that belongs to this worker and outlives calls, failures and recoveries.
    #[getter]
    fn state(&self, py: Python<'_>) -> PyResult<Py<PyDict>> {
        self.with(|worker| Ok(worker.state::<State>().0.get_or_init(|| PyDict::new(py).unbind()).clone_ref(py)))
    }

    /// The collectives of this worker's group.
    #[getter]
    fn in_group(&self) -> Communicator {
        self.within(Scope::Group)
    }

    /// The collectives of the workers that differ from this one along these axes of the session's mesh only, or of another `mesh`.
    #[pyo3(signature = (*axes, mesh = None))]
    fn along(&self, axes: &Bound<'_, PyTuple>, mesh: Option<&Bound<'_, Mesh>>) -> PyResult<Communicator> {
        let names = axes.extract::<Vec<String>>()?;
        let names: Vec<&str> = names.iter().map(String::as_str).collect();
        self.with(|worker| {
            let of_session = worker.state::<MeshOfSession>().0.borrow().clone();
            let Some(mesh) = mesh.map(|mesh| mesh.get().0.clone()).or(of_session) else {
                return Err(PyValueError::new_err(format!(
                    "along{axes}: the session has no mesh: the program gives it one with `session.mesh(dp=2, tp=2)`"
                )));
            };
            let scope = mesh.along(&names).and_then(|scope| scope.check(&worker.world()).map(|()| scope));
            Ok(self.within(scope.map_err(|error| errors::raised(axes.py(), &error))?))
        })
    }

    /// Sends a result to the program, if it iterates over the results of this call (`call_streaming`); in another call this does
    /// nothing. Waits while the program has left 16 results of this worker, or 1 MiB, untaken. Raises `Cancelled` once the program
    /// takes no more.
    fn emit(&self, value: &Bound<'_, PyAny>) -> PyResult<()> {
        let sent = values::encode(value)?;
        let py = value.py();
        self.with(|worker| detached(py, || worker.emit(sent)).map_err(|error| errors::raised(py, &error)))
    }

    /// Whether the program has cancelled this call, or another failure has ended it: a long function then returns.
    #[getter]
    fn cancelled(&self) -> PyResult<bool> {
        self.with(|worker| Ok(worker.cancelled()))
    }

    /// The limit for one collective, in seconds: the session's `collective_deadline`.
    #[getter]
    fn deadline(&self) -> PyResult<f64> {
        self.with(|worker| Ok(worker.deadline().as_secs_f64()))
    }

    /// The key-value store that all workers of the session share, until the next recovery.
    #[getter]
    fn store(&self) -> PyResult<Store> {
        self.with(|worker| Ok(Store(worker.store())))
    }

    /// A zeroed array of this shape and dtype (`"float32"` without one) in the worker's memory. Ranks of one machine read
    /// each other's such arrays in place. Raises `OutOfMemory`.
    #[pyo3(signature = (shape, dtype = None, *, library = "numpy"))]
    fn empty<'py>(
        &self,
        py: Python<'py>,
        shape: &Bound<'py, PyAny>,
        dtype: Option<&Bound<'py, PyAny>>,
        library: &str,
    ) -> PyResult<Bound<'py, PyAny>> {
        let dtype = dtype.map_or(Ok(DType::F32), dtype_of)?;
        let shape = shape_of(shape)?;
        let zeroed = |worker: &mut WorkerContext| {
            detached(py, || worker.empty(dtype, shape)).map_err(|error| errors::raised(py, &error))
        };
        let tensor = self.with(zeroed)?;
        tensor::as_array(py, tensor, library)
    }

    /// An array of this shape and dtype in memory that outlives the worker, and whether it is new, with zeros. A worker that takes the
    /// place of a lost one finds under the same name what was written last. Raises `ValueError` if the memory has another size, and
    /// `OutOfMemory`.
    #[pyo3(signature = (name, shape, dtype = None, *, library = "numpy"))]
    fn keep<'py>(
        &self,
        py: Python<'py>,
        name: &str,
        shape: &Bound<'py, PyAny>,
        dtype: Option<&Bound<'py, PyAny>>,
        library: &str,
    ) -> PyResult<(Bound<'py, PyAny>, bool)> {
        let dtype = dtype.map_or(Ok(DType::F32), dtype_of)?;
        let shape = shape_of(shape)?;
        let kept = self.with(|worker| {
            detached(py, || worker.keep(name, dtype, shape)).map_err(|error| errors::raised(py, &error))
        })?;
        Ok((tensor::as_array(py, kept.tensor, library)?, kept.is_new))
    }

    /// Discards the memory of this name, which is freed once its arrays are gone. Returns whether there was any.
    fn discard_kept(&self, py: Python<'_>, name: &str) -> PyResult<bool> {
        self.with(|worker| detached(py, || worker.discard_kept(name)).map_err(|error| errors::raised(py, &error)))
    }

    /// Waits for the operations that are enqueued on the worker's stream.
    fn synchronize(&self, py: Python<'_>) -> PyResult<()> {
        self.with(|worker| {
            let deadline = worker.deadline();
            detached(py, || worker.queue().synchronize(deadline)).map_err(|error| errors::raised(py, &error))
        })
    }

    fn __repr__(&self) -> String {
        match self.with(|worker| Ok((worker.worker().index(), worker.world().size()))) {
            Ok((worker, world)) => format!("<disco.Context of worker {worker} of {world}>"),
            Err(_) => "<disco.Context of a call that is over>".to_owned(),
        }
    }
}
