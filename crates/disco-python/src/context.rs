//! A Python function's view of its worker.

#![allow(unsafe_code)]

use std::marker::PhantomData;
use std::ptr;
use std::sync::atomic::{AtomicPtr, Ordering};
use std::thread::{self, ThreadId};

use disco::{DType, Op, OpKind, Shape, WorkerContext};
use pyo3::exceptions::{PyRuntimeError, PyTypeError};
use pyo3::prelude::*;
use pyo3::types::{PyComplex, PyDict, PyFloat, PyInt};

use crate::errors;
use crate::forks::is_child_of_worker;
use crate::lock::detached;
use crate::shapes::{blocks, check_complex, elements, is_window, rank, reduction_of, with_first};
use crate::tensor;

/// The worker that runs a function, during the call.
///
/// Collectives are called by all workers, or with `group=True` by those of a group, with arrays of the same shape and dtype. They raise
/// `Mismatch` if the ranks' arrays do not fit together, `Deadline` if a rank is missing for the session's `collective_deadline`,
/// `Aborted` if another worker has failed, `Unsupported` for a dtype that the backend lacks, `NoCommunicator` before
/// `init_ccl`, `TypeError` for an object without `__dlpack__`, and `ValueError` or `BufferError` for an output that can't be written in place.
#[pyclass(frozen, module = "disco._disco")]
pub(crate) struct Context {
    /// Null while a method uses it, and after the call.
    worker: AtomicPtr<WorkerContext>,
    thread: ThreadId,
}

/// The state of a worker: a dict of the program.
#[derive(Default)]
struct State(std::cell::OnceCell<Py<PyDict>>);

/// A context that can be used until this value is dropped.
pub(crate) struct Lent<'a>(Py<Context>, PhantomData<&'a mut WorkerContext>);

impl Lent<'_> {
    /// The context, for a Python function.
    pub(crate) fn context<'py>(&self, py: Python<'py>) -> Bound<'py, PyAny> {
        self.0.bind(py).clone().into_any()
    }
}

impl Drop for Lent<'_> {
    fn drop(&mut self) {
        self.0.get().worker.store(ptr::null_mut(), Ordering::Relaxed);
    }
}

impl Context {
    /// Lends the worker to Python.
    pub(crate) fn lend<'a>(py: Python<'_>, worker: &'a mut WorkerContext) -> PyResult<Lent<'a>> {
        let context = Self { worker: AtomicPtr::new(worker), thread: thread::current().id() };
        Ok(Lent(Py::new(py, context)?, PhantomData))
    }

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
        // SAFETY: `lend` got an exclusive reference that lasts until the drop of `Lent`, this is its thread, and while the
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
        let dtype = dtype.map_or(Ok(DType::F32), tensor::dtype_of)?;
        let shape = tensor::shape_of(shape)?;
        let zeroed = |worker: &mut WorkerContext| {
            detached(py, || worker.empty(dtype, shape)).map_err(|error| errors::raised(py, &error))
        };
        let tensor = self.with(zeroed)?;
        self.array(py, tensor, library)
    }

    /// The reduction of all ranks' `x`, on all ranks: an array of the same shape, or a number if `x` is one. With `out=x` in
    /// place. Reductions: `sum`, `prod`, `min`, `max`, `avg`; of rows along the last axis `disco.argmax`, `disco.logsumexp`,
    /// `disco.top_k`. Complex numbers have `sum` and `avg`.
    #[pyo3(signature = (x, op = "sum", *, out = None, group = false))]
    fn all_reduce<'py>(
        &self,
        x: &Bound<'py, PyAny>,
        op: &str,
        out: Option<&Bound<'py, PyAny>>,
        group: bool,
    ) -> PyResult<Bound<'py, PyAny>> {
        let reduction = reduction_of(op)?;
        let is_number = x.is_instance_of::<PyFloat>() || x.is_instance_of::<PyInt>() || x.is_instance_of::<PyComplex>();
        if out.is_some() && is_number {
            return Err(PyTypeError::new_err("all_reduce: the result of a number is a number, which has no `out`"));
        }
        if let Some(result) = self.all_reduce_number(x, reduction, group)? {
            return Ok(result);
        }
        let make = |src, dst| Op::AllReduce { src, dst, reduction };
        self.new_or_out(x, out, group, |dims, _| Ok(Shape::from(dims)), make)
    }

    /// The reduction of all ranks' `x`, of the same shape, on rank `root`; `None` on others.
    #[pyo3(signature = (x, op = "sum", *, root = 0, out = None, group = false))]
    fn reduce<'py>(
        &self,
        x: &Bound<'py, PyAny>,
        op: &str,
        root: usize,
        out: Option<&Bound<'py, PyAny>>,
        group: bool,
    ) -> PyResult<Option<Bound<'py, PyAny>>> {
        let (reduction, root) = (reduction_of(op)?, rank(root)?);
        if self.ranks(x.py(), group)?.0 != root.index() {
            let input = self.input(x)?;
            check_complex(OpKind::Reduce, Some(reduction), input.is_complex)?;
            self.enqueue(x.py(), group, &[Op::Reduce { src: Some(input.tensor), dst: None, reduction, root }])?;
            return Ok(None);
        }
        let make = |src, dst| Op::Reduce { src, dst: Some(dst), reduction, root };
        self.new_or_out(x, out, group, |dims, _| Ok(Shape::from(dims)), make).map(Some)
    }

    /// This rank's block along axis 0 of the reduction of all ranks' `x`: shape `[n * k, ..]` to `[k, ..]` for `n` ranks.
    #[pyo3(signature = (x, op = "sum", *, out = None, group = false))]
    fn reduce_scatter<'py>(
        &self,
        x: &Bound<'py, PyAny>,
        op: &str,
        out: Option<&Bound<'py, PyAny>>,
        group: bool,
    ) -> PyResult<Bound<'py, PyAny>> {
        let reduction = reduction_of(op)?;
        let shape = |dims: &[usize], ranks| {
            let (rows, rest) = blocks("reduce_scatter", dims, ranks)?;
            Ok(with_first(rows, &rest))
        };
        self.new_or_out(x, out, group, shape, |src, dst| Op::ReduceScatter { src, dst, reduction })
    }

    /// All ranks' `x`, stacked along a new axis 0: shape `[..]` to `[n, ..]` for `n` ranks. With `x=None` or `x=out[r]`, rank
    /// `r`'s part is in `out[r]` already.
    #[pyo3(signature = (x, *, out = None, group = false))]
    fn all_gather<'py>(
        &self,
        x: &Bound<'py, PyAny>,
        out: Option<&Bound<'py, PyAny>>,
        group: bool,
    ) -> PyResult<Bound<'py, PyAny>> {
        let shape = |dims: &[usize], ranks| Ok(with_first(ranks, dims));
        self.new_or_out(x, out, group, shape, |src, dst| Op::AllGather { src, dst })
    }

    /// All ranks' `x`, one after the other along axis 0; rank `r` has `counts[r]` rows.
    #[pyo3(signature = (x, counts, *, out = None, group = false))]
    fn all_gather_v<'py>(
        &self,
        x: &Bound<'py, PyAny>,
        counts: Vec<usize>,
        out: Option<&Bound<'py, PyAny>>,
        group: bool,
    ) -> PyResult<Bound<'py, PyAny>> {
        let dims = self.input(if x.is_none() { out.unwrap_or(x) } else { x })?.tensor.dims();
        let counts_of_op = elements(&counts, &dims)?;
        let shape = |dims: &[usize], _| Ok(with_first(counts.iter().sum(), dims.get(1..).unwrap_or(&[])));
        let make = |src, dst| Op::AllGatherV { src, dst, counts: counts_of_op.clone() };
        self.new_or_out(x, out, group, shape, make)
    }

    /// The blocks along axis 0 that all ranks have for this one, in the order of the ranks: shape `[n * k, ..]`, as that of
    /// `x`, whose block `r` goes to rank `r`.
    #[pyo3(signature = (x, *, out = None, group = false))]
    fn all_to_all<'py>(
        &self,
        x: &Bound<'py, PyAny>,
        out: Option<&Bound<'py, PyAny>>,
        group: bool,
    ) -> PyResult<Bound<'py, PyAny>> {
        let shape = |dims: &[usize], ranks| blocks("all_to_all", dims, ranks).map(|_| Shape::from(dims));
        self.new_or_out(x, out, group, shape, |src, dst| Op::AllToAll { src, dst })
    }

    /// As `all_to_all`, with `send[r]` rows for rank `r` and `receive[r]` rows from it.
    #[pyo3(signature = (x, send, receive, *, out = None, group = false))]
    fn all_to_all_v<'py>(
        &self,
        x: &Bound<'py, PyAny>,
        send: Vec<usize>,
        receive: Vec<usize>,
        out: Option<&Bound<'py, PyAny>>,
        group: bool,
    ) -> PyResult<Bound<'py, PyAny>> {
        let dims = self.input(x)?.tensor.dims();
        let (send_counts, recv_counts) = (elements(&send, &dims)?, elements(&receive, &dims)?);
        let shape = |dims: &[usize], _| Ok(with_first(receive.iter().sum(), dims.get(1..).unwrap_or(&[])));
        let counts = || (send_counts.clone(), recv_counts.clone());
        let make = |src, dst| {
            let (send_counts, recv_counts) = counts();
            Op::AllToAllV { src, send_counts, dst, recv_counts }
        };
        self.new_or_out(x, out, group, shape, make)
    }

    /// Overwrites `x` with that of rank `root`, and returns it. An array of jax does not change, and the result is a new one.
    #[pyo3(signature = (x, *, root = 0, group = false))]
    fn broadcast<'py>(&self, x: &Bound<'py, PyAny>, root: usize, group: bool) -> PyResult<Bound<'py, PyAny>> {
        let root = rank(root)?;
        let is_root = self.ranks(x.py(), group)?.0 == root.index();
        // The root's elements are only read.
        let is_new = !is_root && tensor::library_of(x) == Some("jax");
        let given = if is_root || is_new { self.input(x)? } else { self.output(x)? };
        let dst = if is_new {
            self.new_tensor(x.py(), given.tensor.dtype(), given.tensor.shape().clone())?
        } else {
            given.tensor
        };
        self.enqueue(x.py(), group, &[Op::Broadcast { src: None, dst: dst.clone(), root }])?;
        if is_new { self.result(x, dst, given.is_complex) } else { Ok(x.clone()) }
    }

    /// All ranks' `x`, stacked along a new axis 0, on rank `root`; `None` on others.
    #[pyo3(signature = (x, *, root = 0, out = None, group = false))]
    fn gather<'py>(
        &self,
        x: &Bound<'py, PyAny>,
        root: usize,
        out: Option<&Bound<'py, PyAny>>,
        group: bool,
    ) -> PyResult<Option<Bound<'py, PyAny>>> {
        let root = rank(root)?;
        if self.ranks(x.py(), group)?.0 != root.index() {
            let src = Some(self.input(x)?.tensor);
            self.enqueue(x.py(), group, &[Op::Gather { src, dst: None, root }])?;
            return Ok(None);
        }
        let shape = |dims: &[usize], ranks| Ok(with_first(ranks, dims));
        self.new_or_out(x, out, group, shape, |src, dst| Op::Gather { src, dst: Some(dst), root }).map(Some)
    }

    /// Block `r` along axis 0 of rank `root`'s `x` goes to rank `r`'s `out`, which is returned.
    #[pyo3(signature = (x, out, *, root = 0, group = false))]
    fn scatter<'py>(
        &self,
        x: Option<&Bound<'py, PyAny>>,
        out: &Bound<'py, PyAny>,
        root: usize,
        group: bool,
    ) -> PyResult<Bound<'py, PyAny>> {
        let root = rank(root)?;
        let (own, ranks) = self.ranks(out.py(), group)?;
        let is_root = own == root.index();
        let src = x.filter(|_| is_root).map(|x| self.input(x)).transpose()?.map(|input| input.tensor);
        if is_root && src.is_none() {
            return Err(PyTypeError::new_err("scatter: the root needs an array"));
        }
        let dst = self.output(out)?.tensor;
        // The root's own block stays where it is.
        let is_own = |src: &disco::Tensor| {
            src.elements() == dst.elements() * ranks && is_window(&dst, src, own * dst.elements())
        };
        let dst = (!src.as_ref().is_some_and(is_own)).then_some(dst);
        self.enqueue(out.py(), group, &[Op::Scatter { src, dst, root }])?;
        Ok(out.clone())
    }

    /// Sends `x` to a rank, which receives it.
    #[pyo3(signature = (x, to, *, group = false))]
    fn send(&self, x: &Bound<'_, PyAny>, to: usize, group: bool) -> PyResult<()> {
        self.enqueue(x.py(), group, &[Op::Send { src: self.input(x)?.tensor, to: rank(to)? }])
    }

    /// Receives into `out` from a rank, and returns it.
    #[pyo3(signature = (out, source, *, group = false))]
    fn receive<'py>(&self, out: &Bound<'py, PyAny>, source: usize, group: bool) -> PyResult<Bound<'py, PyAny>> {
        self.enqueue(out.py(), group, &[Op::Recv { dst: self.output(out)?.tensor, from: rank(source)? }])?;
        Ok(out.clone())
    }

    /// Sends and receives at the same time: `sends` are pairs of an array and a rank, and so are `receives`.
    #[pyo3(signature = (sends, receives, *, group = false))]
    fn exchange(
        &self,
        py: Python<'_>,
        sends: Vec<(Bound<'_, PyAny>, usize)>,
        receives: Vec<(Bound<'_, PyAny>, usize)>,
        group: bool,
    ) -> PyResult<()> {
        let send = |(x, to): &(Bound<'_, PyAny>, usize)| Ok(Op::Send { src: self.input(x)?.tensor, to: rank(*to)? });
        let receive = |(out, from): &(Bound<'_, PyAny>, usize)| {
            Ok(Op::Recv { dst: self.output(out)?.tensor, from: rank(*from)? })
        };
        let ops = sends.iter().map(send).chain(receives.iter().map(receive)).collect::<PyResult<Vec<_>>>()?;
        self.enqueue(py, group, &ops)
    }

    /// Returns when all ranks have called it.
    #[pyo3(signature = (*, group = false))]
    fn barrier(&self, py: Python<'_>, group: bool) -> PyResult<()> {
        self.enqueue(py, group, &[Op::Barrier])
    }

    /// Waits for the operations that are enqueued on the worker's stream.
    pub(crate) fn synchronize(&self, py: Python<'_>) -> PyResult<()> {
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
