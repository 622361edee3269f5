//! Meshes of workers.

use std::hash::{Hash, Hasher};

use disco::WorkerId;
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyTuple};

use crate::core::worker_of;
use crate::errors;

/// A grid of workers with named axes, such as `Mesh(dp=2, tp=4)`: worker numbers in row-major order, so that the last axis varies
/// fastest. `session.mesh` gives a session its mesh.
#[pyclass(frozen, eq, hash, module = "disco._disco")]
#[derive(PartialEq, Eq)]
pub(crate) struct Mesh(pub(crate) disco::Mesh);

impl Hash for Mesh {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.0.axes().for_each(|axis| axis.hash(state));
    }
}

fn raised(py: Python<'_>) -> impl Fn(disco::Error) -> PyErr {
    move |error| errors::raised(py, &error)
}

#[pymethods]
impl Mesh {
    #[new]
    #[pyo3(signature = (**axes))]
    fn new(py: Python<'_>, axes: Option<&Bound<'_, PyDict>>) -> PyResult<Self> {
        let axes = axes.map_or(Ok(Vec::new()), |axes| axes.iter().map(|axis| axis_of(&axis)).collect::<PyResult<_>>());
        Ok(Self(disco::Mesh::new(axes?).map_err(raised(py))?))
    }

    /// Number of places: the product of the sizes.
    #[getter]
    fn size(&self) -> usize {
        self.0.size()
    }

    /// The sizes of the axes, by their names.
    #[getter]
    fn axes<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let axes = PyDict::new(py);
        self.0.axes().try_for_each(|(name, size)| axes.set_item(name, size))?;
        Ok(axes)
    }

    /// The place of a worker along each axis, by the axes' names.
    fn coordinates<'py>(&self, py: Python<'py>, worker: usize) -> PyResult<Bound<'py, PyDict>> {
        let places = self.0.coordinates(worker_of(worker)).map_err(raised(py))?;
        let coordinates = PyDict::new(py);
        self.0.axes().zip(places).try_for_each(|((name, _), place)| coordinates.set_item(name, place))?;
        Ok(coordinates)
    }

    /// The worker at a place, which has a number for each axis: `mesh.worker(dp=1, tp=2)`.
    #[pyo3(signature = (**place))]
    fn worker(&self, py: Python<'_>, place: Option<&Bound<'_, PyDict>>) -> PyResult<usize> {
        let given = place.map_or(0, |place| place.len());
        let of_axis = |(name, _): (&str, usize)| match place.map(|place| place.get_item(name)).transpose()?.flatten() {
            Some(number) => number.extract::<usize>(),
            None => {
                Err(PyValueError::new_err(format!("worker: the place has no `{name}`, which is an axis of {self}")))
            }
        };
        let numbers = self.0.axes().map(of_axis).collect::<PyResult<Vec<_>>>()?;
        if given != numbers.len() {
            let text = format!("worker: the place has {given} numbers, and {self} has {} axes", numbers.len());
            return Err(PyValueError::new_err(text));
        }
        self.0.worker(&numbers).map(WorkerId::index).map_err(raised(py))
    }

    fn __repr__(&self) -> String {
        self.to_string()
    }

    fn __reduce__<'py>(&self, py: Python<'py>) -> PyResult<(Bound<'py, PyAny>, Bound<'py, PyTuple>)> {
        let restored = py.get_type::<Self>().getattr("_restored")?;
        Ok((restored, PyTuple::new(py, [self.0.to_string()])?))
    }

    /// The mesh of a pickle.
    #[staticmethod]
    fn _restored(py: Python<'_>, text: &str) -> PyResult<Self> {
        Ok(Self(text.parse().map_err(raised(py))?))
    }
}

fn axis_of((name, size): &(Bound<'_, PyAny>, Bound<'_, PyAny>)) -> PyResult<(String, usize)> {
    Ok((name.extract()?, size.extract()?))
}

impl std::fmt::Display for Mesh {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let axes: Vec<_> = self.0.axes().map(|(name, size)| format!("{name}={size}")).collect();
        write!(f, "disco.Mesh({})", axes.join(", "))
    }
}
