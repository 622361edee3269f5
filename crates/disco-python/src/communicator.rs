//! A Python function's collectives, among all workers, a group, or the workers along axes of a mesh.

use std::sync::Arc;

use disco::{CommunicatorExt as _, Op, OpKind, Scope, Shape};
use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;
use pyo3::types::{PyComplex, PyFloat, PyInt};

use crate::access::Access;
use crate::arrays;
use crate::outcome::Outcome;
use crate::shapes::{Reduce, blocks, check_complex, elements, is_window, rank, with_first};
use crate::work::Work;

/// Collectives of the worker that runs a function, during the call, with the other ranks of one scope. `ctx` itself has those of all
/// workers.
///
/// All ranks call them, with arrays of the same shape and dtype. They raise `Mismatch` if the ranks' arrays do not fit together,
/// `Deadline` if a rank is missing for the session's `collective_deadline`, `Aborted` if another worker has failed, `Unsupported`
/// for a dtype that the backend lacks, `NoCommunicator` before `init_ccl`, `TypeError` for an object without `__dlpack__`, and
/// `ValueError` or `BufferError` for an output that can't be written in place.
#[pyclass(frozen, subclass, module = "disco._disco")]
pub(crate) struct Communicator {
    pub(crate) access: Arc<Access>,
    pub(crate) scope: Scope,
    /// Whether methods start their operation, and return a [`Work`].
    pub(crate) starts: bool,
}

#[pymethods]
impl Communicator {
    /// Number of this worker among the ranks, from 0.
    #[getter]
    fn rank(&self, py: Python<'_>) -> PyResult<usize> {
        Ok(self.ranks(py)?.0)
    }

    /// Number of ranks.
    #[getter]
    fn size(&self, py: Python<'_>) -> PyResult<usize> {
        Ok(self.ranks(py)?.1)
    }

    /// The same operations, each of which is started: it runs while the function computes, and the method returns a `Work` at once.
    /// On a GPU, the host waits as for the operation itself.
    #[getter]
    fn start(&self) -> Self {
        Self { access: self.access.clone(), scope: self.scope.clone(), starts: true }
    }

    /// Ends a started operation, unless it has ended: `work.wait()` raises `Aborted` then, on all ranks. Communicators are
    /// broken afterwards, and the session needs `init_ccl`.
    fn cancel(&self, work: &Bound<'_, Work>, cause: &str) -> PyResult<()> {
        let operations = &work.get().operations;
        self.access.run(work.py(), |worker| worker.comm_in(&self.scope).map(|comm| comm.cancel(operations, cause)))
    }

    /// The reduction of all ranks' `x`, on all ranks: an array of the same shape, or a number if `x` is one. With `out=x` in
    /// place. Reductions: `sum`, `prod`, `min`, `max`, `avg`; of rows along the last axis `disco.argmax`, `disco.logsumexp`,
    /// `disco.top_k`; those that a library of Rust or C registers; or a function of Python that combines two arrays, which is slow:
    /// each rank gets all arrays, and combines them in the order of the ranks. Complex numbers have `sum` and `avg`.
    #[pyo3(signature = (x, op = Reduce::SUM, *, out = None), text_signature = "($self, x, op='sum', *, out=None)")]
    fn all_reduce<'py>(
        slf: &Bound<'py, Self>,
        x: &Bound<'py, PyAny>,
        op: Reduce,
        out: Option<&Bound<'py, PyAny>>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let reduction = match op {
            Reduce::With(function) => return Self::reduce_with(slf, "all_reduce", (x, &function, out)),
            Reduce::By(reduction) => reduction,
        };
        let is_number = x.is_instance_of::<PyFloat>() || x.is_instance_of::<PyInt>() || x.is_instance_of::<PyComplex>();
        if out.is_some() && is_number {
            return Err(PyTypeError::new_err("all_reduce: the result of a number is a number, which has no `out`"));
        }
        if let Some(result) = slf.get().all_reduce_number(x, reduction)? {
            return Ok(result);
        }
        let make = |src, dst| Op::AllReduce { src, dst, reduction };
        slf.get().new_or_out(x, out, |dims, _| Ok(Shape::from(dims)), make)
    }

    /// The reduction of all ranks' `x`, of the same shape, on rank `root`; `None` on others.
    #[pyo3(
        signature = (x, op = Reduce::SUM, *, root = 0, out = None),
        text_signature = "($self, x, op='sum', *, root=0, out=None)"
    )]
    fn reduce<'py>(
        slf: &Bound<'py, Self>,
        x: &Bound<'py, PyAny>,
        op: Reduce,
        root: usize,
        out: Option<&Bound<'py, PyAny>>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let reduction = match op {
            Reduce::With(function) => return Self::reduce_with(slf, "reduce", (x, &function, root, out)),
            Reduce::By(reduction) => reduction,
        };
        let (comm, root) = (slf.get(), rank(root)?);
        if comm.ranks(x.py())?.0 != root.index() {
            let input = comm.input(x)?;
            check_complex(OpKind::Reduce, Some(reduction), input.is_complex)?;
            let op = Op::Reduce { src: Some(input.tensor), dst: None, reduction, root };
            return comm.run(x.py(), &[op], Outcome::none(x.py()));
        }
        let make = |src, dst| Op::Reduce { src, dst: Some(dst), reduction, root };
        comm.new_or_out(x, out, |dims, _| Ok(Shape::from(dims)), make)
    }

    /// This rank's block along axis 0 of the reduction of all ranks' `x`: shape `[n * k, ..]` to `[k, ..]` for `n` ranks.
    #[pyo3(signature = (x, op = Reduce::SUM, *, out = None), text_signature = "($self, x, op='sum', *, out=None)")]
    fn reduce_scatter<'py>(
        slf: &Bound<'py, Self>,
        x: &Bound<'py, PyAny>,
        op: Reduce,
        out: Option<&Bound<'py, PyAny>>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let reduction = match op {
            Reduce::With(function) => return Self::reduce_with(slf, "reduce_scatter", (x, &function, out)),
            Reduce::By(reduction) => reduction,
        };
        let shape = |dims: &[usize], ranks| {
            let (rows, rest) = blocks("reduce_scatter", dims, ranks)?;
            Ok(with_first(rows, &rest))
        };
        slf.get().new_or_out(x, out, shape, |src, dst| Op::ReduceScatter { src, dst, reduction })
    }

    /// All ranks' `x`, stacked along a new axis 0: shape `[..]` to `[n, ..]` for `n` ranks. With `x=None` or `x=out[r]`, rank
    /// `r`'s part is in `out[r]` already.
    #[pyo3(signature = (x, *, out = None))]
    fn all_gather<'py>(&self, x: &Bound<'py, PyAny>, out: Option<&Bound<'py, PyAny>>) -> PyResult<Bound<'py, PyAny>> {
        let shape = |dims: &[usize], ranks| Ok(with_first(ranks, dims));
        self.new_or_out(x, out, shape, |src, dst| Op::AllGather { src, dst })
    }

    /// All ranks' `x`, one after the other along axis 0; rank `r` has `counts[r]` rows.
    #[pyo3(signature = (x, counts, *, out = None))]
    fn all_gather_v<'py>(
        &self,
        x: &Bound<'py, PyAny>,
        counts: Vec<usize>,
        out: Option<&Bound<'py, PyAny>>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let dims = self.input(if x.is_none() { out.unwrap_or(x) } else { x })?.tensor.dims();
        let counts_of_op = elements(&counts, &dims)?;
        let shape = |dims: &[usize], _| Ok(with_first(counts.iter().sum(), dims.get(1..).unwrap_or(&[])));
        let make = |src, dst| Op::AllGatherV { src, dst, counts: counts_of_op.clone() };
        self.new_or_out(x, out, shape, make)
    }

    /// The blocks along axis 0 that all ranks have for this one, in the order of the ranks: shape `[n * k, ..]`, as that of
    /// `x`, whose block `r` goes to rank `r`.
    #[pyo3(signature = (x, *, out = None))]
    fn all_to_all<'py>(&self, x: &Bound<'py, PyAny>, out: Option<&Bound<'py, PyAny>>) -> PyResult<Bound<'py, PyAny>> {
        let shape = |dims: &[usize], ranks| blocks("all_to_all", dims, ranks).map(|_| Shape::from(dims));
        self.new_or_out(x, out, shape, |src, dst| Op::AllToAll { src, dst })
    }

    /// As `all_to_all`, with `send[r]` rows for rank `r` and `receive[r]` rows from it.
    #[pyo3(signature = (x, send, receive, *, out = None))]
    fn all_to_all_v<'py>(
        &self,
        x: &Bound<'py, PyAny>,
        send: Vec<usize>,
        receive: Vec<usize>,
        out: Option<&Bound<'py, PyAny>>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let dims = self.input(x)?.tensor.dims();
        let (send_counts, recv_counts) = (elements(&send, &dims)?, elements(&receive, &dims)?);
        let shape = |dims: &[usize], _| Ok(with_first(receive.iter().sum(), dims.get(1..).unwrap_or(&[])));
        let counts = || (send_counts.clone(), recv_counts.clone());
        let make = |src, dst| {
            let (send_counts, recv_counts) = counts();
            Op::AllToAllV { src, send_counts, dst, recv_counts }
        };
        self.new_or_out(x, out, shape, make)
    }

    /// Overwrites `x` with that of rank `root`, and returns it. An array of jax does not change, and the result is a new one.
    #[pyo3(signature = (x, *, root = 0))]
    fn broadcast<'py>(&self, x: &Bound<'py, PyAny>, root: usize) -> PyResult<Bound<'py, PyAny>> {
        let root = rank(root)?;
        let is_root = self.ranks(x.py())?.0 == root.index();
        // The root's elements are only read.
        let is_new = !is_root && arrays::library_of(x) == Some("jax");
        let given = if is_root || is_new { self.input(x)? } else { self.output(x)? };
        let dst = if is_new {
            self.new_tensor(x.py(), given.tensor.dtype(), given.tensor.shape().clone())?
        } else {
            given.tensor
        };
        let op = Op::Broadcast { src: None, dst: dst.clone(), root };
        self.run(x.py(), &[op], if is_new { Outcome::new(x, dst, given.is_complex) } else { Outcome::from(x) })
    }

    /// All ranks' `x`, stacked along a new axis 0, on rank `root`; `None` on others.
    #[pyo3(signature = (x, *, root = 0, out = None))]
    fn gather<'py>(
        &self,
        x: &Bound<'py, PyAny>,
        root: usize,
        out: Option<&Bound<'py, PyAny>>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let root = rank(root)?;
        if self.ranks(x.py())?.0 != root.index() {
            let src = Some(self.input(x)?.tensor);
            return self.run(x.py(), &[Op::Gather { src, dst: None, root }], Outcome::none(x.py()));
        }
        let shape = |dims: &[usize], ranks| Ok(with_first(ranks, dims));
        self.new_or_out(x, out, shape, |src, dst| Op::Gather { src, dst: Some(dst), root })
    }

    /// Block `r` along axis 0 of rank `root`'s `x` goes to rank `r`'s `out`, which is returned.
    #[pyo3(signature = (x, out, *, root = 0))]
    fn scatter<'py>(
        &self,
        x: Option<&Bound<'py, PyAny>>,
        out: &Bound<'py, PyAny>,
        root: usize,
    ) -> PyResult<Bound<'py, PyAny>> {
        let root = rank(root)?;
        let (own, ranks) = self.ranks(out.py())?;
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
        self.run(out.py(), &[Op::Scatter { src, dst, root }], out.into())
    }

    /// Sends `x` to a rank, which receives it.
    fn send<'py>(&self, x: &Bound<'py, PyAny>, to: usize) -> PyResult<Bound<'py, PyAny>> {
        let op = Op::Send { src: self.input(x)?.tensor, to: rank(to)? };
        self.run(x.py(), &[op], Outcome::none(x.py()))
    }

    /// Receives into `out` from a rank, and returns it.
    fn receive<'py>(&self, out: &Bound<'py, PyAny>, source: usize) -> PyResult<Bound<'py, PyAny>> {
        self.run(out.py(), &[Op::Recv { dst: self.output(out)?.tensor, from: rank(source)? }], out.into())
    }

    /// Sends and receives at the same time: `sends` are pairs of an array and a rank, and so are `receives`.
    fn exchange<'py>(
        &self,
        py: Python<'py>,
        sends: Vec<(Bound<'py, PyAny>, usize)>,
        receives: Vec<(Bound<'py, PyAny>, usize)>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let send = |(x, to): &(Bound<'_, PyAny>, usize)| Ok(Op::Send { src: self.input(x)?.tensor, to: rank(*to)? });
        let receive = |(out, from): &(Bound<'_, PyAny>, usize)| {
            Ok(Op::Recv { dst: self.output(out)?.tensor, from: rank(*from)? })
        };
        let ops = sends.iter().map(send).chain(receives.iter().map(receive)).collect::<PyResult<Vec<_>>>()?;
        self.run(py, &ops, Outcome::none(py))
    }

    /// Returns when all ranks have called it. `start.barrier().wait(timeout)` waits for a limited time.
    fn barrier<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        self.run(py, &[Op::Barrier], Outcome::none(py))
    }

    /// All ranks' objects, in the order of the ranks. They are pickled.
    fn all_gather_object<'py>(&self, x: &Bound<'py, PyAny>) -> PyResult<Vec<Bound<'py, PyAny>>> {
        self.objects_of_all(x)
    }

    /// All ranks' objects, in the order of the ranks, on rank `root`; `None` on others.
    #[pyo3(signature = (x, *, root = 0))]
    fn gather_object<'py>(&self, x: &Bound<'py, PyAny>, root: usize) -> PyResult<Option<Vec<Bound<'py, PyAny>>>> {
        self.objects_at_root(x, root)
    }

    /// The object of rank `root`, on all ranks; the other ranks need not have one.
    #[pyo3(signature = (x = None, *, root = 0))]
    fn broadcast_object<'py>(
        &self,
        py: Python<'py>,
        x: Option<Bound<'py, PyAny>>,
        root: usize,
    ) -> PyResult<Bound<'py, PyAny>> {
        self.object_of_root(x.unwrap_or_else(|| py.None().into_bound(py)), root)
    }

    /// Item `r` of rank `root`'s list on rank `r`; the other ranks need not have a list.
    #[pyo3(signature = (objects = None, *, root = 0))]
    fn scatter_object<'py>(
        &self,
        py: Python<'py>,
        objects: Option<Vec<Bound<'py, PyAny>>>,
        root: usize,
    ) -> PyResult<Bound<'py, PyAny>> {
        self.object_from_root(py, objects, root)
    }

    fn __repr__(&self) -> String {
        format!("<disco.Communicator of {}>", self.scope)
    }
}
