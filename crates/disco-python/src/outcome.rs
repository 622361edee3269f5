//! What an operation returns to Python.

use disco::Tensor;
use pyo3::prelude::*;

use crate::{arrays, tensor};

/// The result of an operation, once it is complete.
pub(crate) enum Outcome {
    /// An object of the program, or `None`.
    Object(Py<PyAny>),
    /// New memory, of which the library makes an array. Some libraries read it then.
    New { tensor: Tensor, library: &'static str, is_complex: bool },
}

impl Outcome {
    pub(crate) fn none(py: Python<'_>) -> Self {
        Self::Object(py.None())
    }

    /// An array of the library of `like`, of complex numbers if the last axis has their parts.
    pub(crate) fn new(like: &Bound<'_, PyAny>, tensor: Tensor, is_complex: bool) -> Self {
        Self::New { tensor, library: arrays::library_of(like).unwrap_or("disco"), is_complex }
    }

    pub(crate) fn clone_ref(&self, py: Python<'_>) -> Self {
        match self {
            Self::Object(object) => Self::Object(object.clone_ref(py)),
            &Self::New { ref tensor, library, is_complex } => Self::New { tensor: tensor.clone(), library, is_complex },
        }
    }

    pub(crate) fn object<'py>(self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        match self {
            Self::Object(object) => Ok(object.into_bound(py)),
            Self::New { tensor, library, is_complex } => {
                let array = tensor::as_array(py, tensor, library)?;
                if is_complex { tensor::to_complex(&array, library) } else { Ok(array) }
            }
        }
    }
}

impl From<&Bound<'_, PyAny>> for Outcome {
    fn from(object: &Bound<'_, PyAny>) -> Self {
        Self::Object(object.clone().unbind())
    }
}
