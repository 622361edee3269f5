//! Collectives of objects, which are pickled, and reductions by functions of Python.

use std::sync::Arc;

use disco::{DType, Op, Shape, Tensor};
use pyo3::call::PyCallArgs;
use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::PyBytes;

use crate::communicator::Communicator;
use crate::outcome::Outcome;
use crate::shapes::rank;

impl Communicator {
    /// All ranks' objects.
    pub(crate) fn objects_of_all<'py>(&self, x: &Bound<'py, PyAny>) -> PyResult<Vec<Bound<'py, PyAny>>> {
        let py = x.py();
        let transfer = Transfer::new(self, py, "all_gather_object")?;
        let (src, counts) = transfer.sizes_of_all(&pickled(x)?)?;
        let dst = transfer.empty(counts.iter().sum())?;
        transfer.run(Op::AllGatherV { src: Some(src), dst: dst.clone(), counts: counts.clone() })?;
        transfer.objects(&dst, &counts)
    }

    /// All ranks' objects, on the root.
    pub(crate) fn objects_at_root<'py>(
        &self,
        x: &Bound<'py, PyAny>,
        root: usize,
    ) -> PyResult<Option<Vec<Bound<'py, PyAny>>>> {
        let transfer = Transfer::new(self, x.py(), "gather_object")?;
        let (root, (own, ranks)) = (transfer.root(root)?, self.ranks(x.py())?);
        let (src, counts) = transfer.sizes_of_all(&pickled(x)?)?;
        let is_root = own == root;
        let of_root = |counts: &[usize]| if is_root { counts.into() } else { vec![0; ranks].into() };
        let mut send: Vec<usize> = vec![0; ranks];
        send[root] = counts[own];
        let recv: Arc<[usize]> = of_root(&counts);
        let dst = transfer.empty(recv.iter().sum())?;
        let op =
            Op::AllToAllV { src: Some(src), send_counts: send.into(), dst: dst.clone(), recv_counts: recv.clone() };
        transfer.run(op)?;
        is_root.then(|| transfer.objects(&dst, &recv)).transpose()
    }

    /// The object of the root.
    pub(crate) fn object_of_root<'py>(&self, x: Bound<'py, PyAny>, root: usize) -> PyResult<Bound<'py, PyAny>> {
        let transfer = Transfer::new(self, x.py(), "broadcast_object")?;
        let root = transfer.root(root)?;
        let is_root = self.ranks(x.py())?.0 == root;
        // Others need not have an object that can be pickled.
        let own = if is_root { pickled(&x)? } else { PyBytes::new(x.py(), &[]) };
        let (src, counts) = transfer.sizes_of_all(&own)?;
        let dst = if is_root { src } else { transfer.empty(counts[root])? };
        transfer.run(Op::Broadcast { src: None, dst: dst.clone(), root: rank(root)? })?;
        if is_root { Ok(x) } else { transfer.object(&dst) }
    }

    /// The rank's item of the root's list.
    pub(crate) fn object_from_root<'py>(
        &self,
        py: Python<'py>,
        objects: Option<Vec<Bound<'py, PyAny>>>,
        root: usize,
    ) -> PyResult<Bound<'py, PyAny>> {
        let transfer = Transfer::new(self, py, "scatter_object")?;
        let (root, (own, ranks)) = (transfer.root(root)?, self.ranks(py)?);
        let is_root = own == root;
        let items = match objects.filter(|_| is_root) {
            Some(items) if items.len() == ranks => items.iter().map(pickled).collect::<PyResult<Vec<_>>>()?,
            Some(items) => {
                let text = format!("scatter_object: the root has {} objects for {ranks} ranks", items.len());
                return Err(PyValueError::new_err(text));
            }
            None if is_root => return Err(PyTypeError::new_err("scatter_object: the root needs a list of objects")),
            None => Vec::new(),
        };
        let counts: Vec<usize> = items.iter().map(|item| item.as_bytes().len()).collect();
        let bytes: Vec<u8> = items.iter().flat_map(|item| item.as_bytes()).copied().collect();
        let sizes = transfer.tensor(counts.iter().map(|count| *count as i64).collect())?;
        let size = transfer.empty_of(DType::I64, 1)?;
        let src = is_root.then_some(sizes);
        transfer.run(Op::Scatter { src, dst: Some(size.clone()), root: rank(root)? })?;
        let size = transfer.vec::<i64>(&size)?[0] as usize;
        let dst = transfer.empty(size)?;
        let mut recv = vec![0; ranks];
        recv[root] = size;
        let send = if is_root { counts } else { vec![0; ranks] };
        let src = Some(transfer.tensor(bytes)?);
        let op = Op::AllToAllV { src, send_counts: send.into(), dst: dst.clone(), recv_counts: recv.into() };
        transfer.run(op)?;
        transfer.object(&dst)
    }

    /// A reduction by a function of Python that combines two arrays: `disco._reduce` gathers the arrays.
    pub(crate) fn reduce_with<'py>(
        comm: &Bound<'py, Self>,
        name: &str,
        args: impl PyCallArgs<'py>,
    ) -> PyResult<Bound<'py, PyAny>> {
        if comm.get().starts {
            return Err(PyTypeError::new_err(format!("{name}: a reduction by a function of Python can't be started")));
        }
        let function = comm.py().import("disco._reduce")?.getattr(name)?.call1((comm,))?;
        function.call1(args)
    }
}

fn pickled<'py>(x: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyBytes>> {
    Ok(x.py().import("disco._by_value")?.getattr("dumps")?.call1((x,))?.cast_into()?)
}

/// Bytes between ranks, in the memory of their devices.
struct Transfer<'a, 'py> {
    comm: &'a Communicator,
    py: Python<'py>,
    what: &'static str,
}

impl<'a, 'py> Transfer<'a, 'py> {
    fn new(comm: &'a Communicator, py: Python<'py>, what: &'static str) -> PyResult<Self> {
        if comm.starts {
            return Err(PyTypeError::new_err(format!("{what} can't be started: it has several steps")));
        }
        Ok(Self { comm, py, what })
    }

    fn root(&self, root: usize) -> PyResult<usize> {
        let ranks = self.comm.ranks(self.py)?.1;
        if root < ranks {
            return Ok(root);
        }
        Err(PyValueError::new_err(format!("{}: there is no rank {root} among {ranks}", self.what)))
    }

    fn run(&self, op: Op) -> PyResult<()> {
        self.comm.run(self.py, &[op], Outcome::none(self.py)).map(drop)
    }

    fn on_device<T: Send>(
        &self,
        work: impl FnOnce(&mut disco::WorkerContext) -> disco::Result<T> + Send,
    ) -> PyResult<T> {
        self.comm.access.run(self.py, work)
    }

    fn empty(&self, bytes: usize) -> PyResult<Tensor> {
        self.empty_of(DType::U8, bytes)
    }

    fn empty_of(&self, dtype: DType, elements: usize) -> PyResult<Tensor> {
        self.on_device(|worker| worker.empty_for_result(dtype, Shape::from(elements)))
    }

    fn tensor<T: disco::Element>(&self, elements: Vec<T>) -> PyResult<Tensor> {
        self.on_device(|worker| {
            let count = elements.len();
            let host = Tensor::from_vec(elements, count)?;
            if worker.device().is_host() {
                return Ok(host);
            }
            let copy = worker.empty_for_result(host.dtype(), host.shape().clone())?;
            worker.queue().copy_in(&copy, &host)?;
            Ok(copy)
        })
    }

    fn vec<T: disco::Element>(&self, tensor: &Tensor) -> PyResult<Vec<T>> {
        self.on_device(|worker| {
            if worker.device().is_host() {
                return tensor.to_vec();
            }
            let host = Tensor::zeros(tensor.dtype(), tensor.shape().clone())?;
            worker.queue().copy_out(&host, tensor)?;
            let deadline = worker.deadline();
            worker.queue().synchronize(deadline)?;
            host.to_vec()
        })
    }

    /// This rank's bytes, and the sizes of all ranks' bytes.
    fn sizes_of_all(&self, own: &Bound<'_, PyBytes>) -> PyResult<(Tensor, Arc<[usize]>)> {
        let size = self.tensor(vec![own.as_bytes().len() as i64])?;
        let sizes = self.empty_of(DType::I64, self.comm.ranks(self.py)?.1)?;
        self.run(Op::AllGather { src: Some(size), dst: sizes.clone() })?;
        let sizes = self.vec::<i64>(&sizes)?.into_iter().map(|size| size as usize).collect();
        Ok((self.tensor(own.as_bytes().to_vec())?, sizes))
    }

    fn object(&self, pickled: &Tensor) -> PyResult<Bound<'py, PyAny>> {
        Ok(self.objects(pickled, &[pickled.elements()])?.remove(0))
    }

    fn objects(&self, pickles: &Tensor, sizes: &[usize]) -> PyResult<Vec<Bound<'py, PyAny>>> {
        let bytes = self.vec::<u8>(pickles)?;
        let loads = self.py.import("pickle")?.getattr("loads")?;
        let mut rest = &bytes[..];
        let load = |size: &usize| {
            let (own, others) = rest.split_at(*size);
            rest = others;
            loads.call1((PyBytes::new(self.py, own),))
        };
        sizes.iter().map(load).collect()
    }
}
