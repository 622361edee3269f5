//! How operations run on arrays of Python: inputs, outputs and results.

use disco::{CommunicatorExt as _, DType, Op, OpKind, Reduction, Shape};
use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyComplex, PyFloat, PyInt, PyTuple};

use crate::arrays::{self, Imported};
use crate::communicator::Communicator;
use crate::errors;
use crate::outcome::Outcome;
use crate::shapes::{check_complex, is_window};
use crate::work::Work;

impl Communicator {
    /// Runs operations in order, without the interpreter's lock, or starts them.
    pub(crate) fn run<'py>(&self, py: Python<'py>, ops: &[Op], outcome: Outcome) -> PyResult<Bound<'py, PyAny>> {
        let is_on_device = ops.iter().flat_map(|op| [op.src(), op.dst()]).flatten().any(|x| !x.device().is_host());
        let operations = self.access.run(py, |worker| {
            let comm = worker.comm_in(&self.scope)?;
            let work = if self.starts { Some(comm.start(ops)?) } else { comm.enqueue(ops).map(|()| None)? };
            if is_on_device {
                // The stream of the array's library may not be the worker's.
                let deadline = worker.deadline();
                worker.queue().synchronize(deadline)?;
            }
            Ok(work)
        })?;
        match operations {
            Some(operations) => Ok(Bound::new(py, Work::new(operations, outcome))?.into_any()),
            None => outcome.object(py),
        }
    }

    /// Rank and number of ranks.
    pub(crate) fn ranks(&self, py: Python<'_>) -> PyResult<(usize, usize)> {
        self.access.run(py, |worker| {
            let world = worker.world();
            Ok((self.scope.rank(&world, worker.worker()).index(), self.scope.ranks(&world)))
        })
    }

    pub(crate) fn stream_argument(&self, py: Python<'_>) -> PyResult<Option<i64>> {
        self.access.run(py, |worker| {
            let device = worker.device();
            Ok(arrays::stream_argument(device, worker.queue().raw() as usize))
        })
    }

    /// An input: contiguous, copied if it is not.
    pub(crate) fn input<'py>(&self, array: &Bound<'py, PyAny>) -> PyResult<Imported> {
        arrays::contiguous(array, self.stream_argument(array.py())?, false)
    }

    /// An output: the memory of the array itself.
    pub(crate) fn output(&self, array: &Bound<'_, PyAny>) -> PyResult<Imported> {
        let output = arrays::import(array, self.stream_argument(array.py())?)?;
        if arrays::library_of(array) == Some("jax") {
            return Err(PyValueError::new_err("arrays of jax do not change: leave `out` out, and take the result"));
        }
        if output.is_read_only {
            return Err(PyValueError::new_err("the output is read-only"));
        }
        if !output.tensor.is_contiguous() {
            return Err(PyValueError::new_err("the output is not contiguous"));
        }
        Ok(output)
    }

    /// The result of an operation with one input and one output: `out` if it is given, else a new array of the input's
    /// library.
    pub(crate) fn new_or_out<'py>(
        &self,
        src: &Bound<'py, PyAny>,
        out: Option<&Bound<'py, PyAny>>,
        shape: impl FnOnce(&[usize], usize) -> PyResult<Shape>,
        op: impl Fn(Option<disco::Tensor>, disco::Tensor) -> Op,
    ) -> PyResult<Bound<'py, PyAny>> {
        let py = src.py();
        let is_in_place = src.is_none() || out.is_some_and(|out| out.is(src));
        if let (true, Some(out)) = (is_in_place, out) {
            let output = self.output(out)?;
            let op = op(None, output.tensor);
            check_complex(op.kind(), op.reduction(), output.is_complex)?;
            return self.run(py, &[op], out.into());
        }
        let Imported { tensor: input, is_complex, .. } = self.input(src)?;
        let (rank, ranks) = self.ranks(py)?;
        let dst = match out {
            Some(out) => {
                let output = self.output(out)?;
                if output.is_complex != is_complex {
                    return Err(PyTypeError::new_err("the input or the output is complex, and the other is not"));
                }
                output.tensor
            }
            None => {
                let mut dims = input.dims();
                let parts = if is_complex { dims.pop() } else { None };
                let shape = shape(&dims, ranks)?;
                let extents: Vec<usize> = shape.iter().map(|&extent| extent as usize).chain(parts).collect();
                self.new_tensor(py, input.dtype(), Shape::from(extents))?
            }
        };
        let separate = op(Some(input), dst.clone());
        check_complex(separate.kind(), separate.reduction(), is_complex)?;
        let op = if is_own_part(&separate, rank, ranks) { op(None, dst.clone()) } else { separate };
        self.run(py, &[op], out.map_or_else(|| Outcome::new(src, dst, is_complex), Outcome::from))
    }

    /// A tensor for a result, which an operation writes all of.
    pub(crate) fn new_tensor(&self, py: Python<'_>, dtype: DType, shape: Shape) -> PyResult<disco::Tensor> {
        self.access.run(py, |worker| worker.empty_for_result(dtype, shape))
    }

    /// The reduction of a number, which needs no array.
    pub(crate) fn all_reduce_number<'py>(
        &self,
        x: &Bound<'py, PyAny>,
        reduction: Reduction,
    ) -> PyResult<Option<Bound<'py, PyAny>>> {
        let py = x.py();
        let is_of_python =
            x.is_instance_of::<PyFloat>() || x.is_instance_of::<PyInt>() || x.is_instance_of::<PyComplex>();
        let is_number = is_of_python || (!x.hasattr("__dlpack__")? && x.hasattr("dtype")?);
        if self.starts && is_number {
            return Err(PyTypeError::new_err("a started operation needs an array: the result of a number is a number"));
        }
        let reduce = |tensor: disco::Result<disco::Tensor>| -> PyResult<disco::Tensor> {
            let tensor = tensor.map_err(|error| errors::raised(py, &error))?;
            self.access.run(py, |worker| worker.comm_in(&self.scope)?.all_reduce_in_place(&tensor, reduction))?;
            Ok(tensor)
        };
        let failed = |error: disco::Error| errors::raised(py, &error);
        if x.is_instance_of::<PyFloat>() {
            let tensor = reduce(disco::Tensor::from_vec(vec![x.extract::<f64>()?], 1))?;
            return Ok(Some(tensor.to_vec::<f64>().map_err(failed)?[0].into_pyobject(py)?.into_any()));
        }
        if x.is_instance_of::<PyInt>() {
            let tensor = reduce(disco::Tensor::from_vec(vec![x.extract::<i64>()?], 1))?;
            return Ok(Some(tensor.to_vec::<i64>().map_err(failed)?[0].into_pyobject(py)?.into_any()));
        }
        if let Ok(complex) = x.cast::<PyComplex>() {
            check_complex(OpKind::AllReduce, Some(reduction), true)?;
            let tensor = reduce(disco::Tensor::from_vec(vec![complex.real(), complex.imag()], 2))?;
            let parts = tensor.to_vec::<f64>().map_err(failed)?;
            return Ok(Some(PyComplex::from_doubles(py, parts[0], parts[1]).into_any()));
        }
        // A number of numpy, such as `numpy.float32`.
        if is_number {
            let array = py.import("numpy")?.getattr("asarray")?.call1((x,))?;
            let make = |src, dst| Op::AllReduce { src, dst, reduction };
            let found = self.new_or_out(&array, None, |dims, _| Ok(Shape::from(dims)), make)?;
            return Ok(Some(found.get_item(PyTuple::empty(py))?));
        }
        Ok(None)
    }
}

/// Whether the input of a rank is the part of its output where an operation in place has it.
fn is_own_part(op: &Op, rank: usize, ranks: usize) -> bool {
    let (Some(src), Some(dst)) = (op.src(), op.dst()) else { return false };
    match op {
        Op::AllGather { .. } | Op::Gather { .. } => {
            dst.elements() == src.elements() * ranks && is_window(src, dst, rank * src.elements())
        }
        Op::AllGatherV { counts, .. } => {
            counts.get(rank) == Some(&src.elements()) && is_window(src, dst, counts[..rank].iter().sum())
        }
        _ => src.shape() == dst.shape() && is_window(src, dst, 0),
    }
}
