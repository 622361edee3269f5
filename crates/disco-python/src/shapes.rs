//! Shapes, counts and names of collectives.

use std::sync::Arc;

use disco::{Error, OpKind, Rank, Reduction, Shape};
use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::prelude::*;

/// How arrays are combined.
pub(crate) enum Reduce {
    /// By a reduction with a name.
    By(Reduction),
    /// By a function of Python with two arguments.
    With(Py<PyAny>),
}

impl Reduce {
    pub(crate) const SUM: Self = Self::By(Reduction::Sum);
}

impl<'py> FromPyObject<'_, 'py> for Reduce {
    type Error = PyErr;

    fn extract(object: Borrowed<'_, 'py, PyAny>) -> PyResult<Self> {
        if object.is_callable() {
            return Ok(Self::With(object.to_owned().unbind()));
        }
        let name: String = object.extract()?;
        Ok(Self::By(name.parse().map_err(|error: Error| PyValueError::new_err(error.to_string()))?))
    }
}

/// A shape: an int, or a sequence of ints.
pub(crate) fn shape_of(given: &Bound<'_, PyAny>) -> PyResult<Shape> {
    match given.extract::<i64>() {
        Ok(extent) => Ok(Shape::from(&[extent][..])),
        Err(_) => Ok(Shape::from(&given.extract::<Vec<i64>>()?[..])),
    }
}

/// The extents after the first one, which is an equal number of rows for each of `ranks` ranks.
pub(crate) fn blocks(what: &str, dims: &[usize], ranks: usize) -> PyResult<(usize, Vec<usize>)> {
    match dims {
        [first, rest @ ..] if first % ranks == 0 => Ok((first / ranks, rest.to_vec())),
        _ => Err(PyValueError::new_err(format!(
            "{what}: axis 0 of an array of shape {dims:?} is not divisible into blocks for {ranks} ranks"
        ))),
    }
}

pub(crate) fn rank(number: usize) -> PyResult<Rank> {
    u32::try_from(number).map(Rank::new).map_err(|_| PyValueError::new_err(format!("there is no rank {number}")))
}

/// Numbers of elements from numbers of rows.
pub(crate) fn elements(rows: &[usize], dims: &[usize]) -> PyResult<Arc<[usize]>> {
    let row: usize = dims.iter().skip(1).product();
    let elements: Option<Arc<[usize]>> = rows.iter().map(|rows| rows.checked_mul(row)).collect();
    elements.ok_or_else(|| PyValueError::new_err(format!("{rows:?} rows are more than memory could hold")))
}

/// A shape of equal extents but the first.
pub(crate) fn with_first(first: usize, rest: &[usize]) -> Shape {
    let extents: Vec<usize> = std::iter::once(first).chain(rest.iter().copied()).collect();
    Shape::from(extents)
}

/// # Errors
/// The operation reduces complex numbers in another way than each part for itself.
pub(crate) fn check_complex(kind: OpKind, reduction: Option<Reduction>, is_complex: bool) -> PyResult<()> {
    match reduction {
        Some(reduction) if is_complex && !matches!(reduction, Reduction::Sum | Reduction::Avg) => {
            Err(PyTypeError::new_err(format!("{kind}: complex numbers have the reductions sum and avg only")))
        }
        _ => Ok(()),
    }
}

/// Whether the elements of `part` are those of `whole` from `start` on. Empty tensors share none.
pub(crate) fn is_window(part: &disco::Tensor, whole: &disco::Tensor, start: usize) -> bool {
    let at = whole.data().wrapping_add(start * whole.dtype().size());
    part.byte_len() > 0 && part.dtype() == whole.dtype() && part.data() == at
}
