//! Started operations.

use std::sync::Mutex;
use std::time::Duration;

use disco_core::sync;
use pyo3::prelude::*;
use pyo3::types::PyType;

use crate::errors;
use crate::lock::detached;
use crate::outcome::Outcome;

/// An operation that runs while the function computes: its arrays are not to be used until `wait` has returned.
#[pyclass(frozen, module = "disco._disco")]
pub(crate) struct Work {
    pub(crate) operations: disco::Work,
    outcome: Mutex<Outcome>,
}

impl Work {
    pub(crate) fn new(operations: disco::Work, outcome: Outcome) -> Self {
        Self { operations, outcome: Mutex::new(outcome) }
    }
}

#[pymethods]
impl Work {
    /// Whether the operation has ended, also with an error.
    #[getter]
    fn has_ended(&self) -> bool {
        self.operations.has_ended()
    }

    /// Waits for the end of the operation, at most `timeout` seconds, and returns what the operation itself returns. Raises its
    /// error, and `Timeout` if it has not ended; it goes on then.
    #[pyo3(signature = (timeout = None))]
    fn wait<'py>(&self, py: Python<'py>, timeout: Option<f64>) -> PyResult<Bound<'py, PyAny>> {
        let limit = timeout.map(|seconds| Duration::try_from_secs_f64(seconds.max(0.0)).unwrap_or(Duration::MAX));
        let wait = || match limit {
            Some(limit) => self.operations.wait_timeout(limit),
            None => self.operations.wait().map(|()| true),
        };
        if !detached(py, wait).map_err(|error| errors::raised(py, &error))? {
            return Err(errors::timeout(py, timeout.unwrap_or_default()));
        }
        // Another thread may make the array meanwhile; the first one stays.
        let outcome = sync::lock(&self.outcome).clone_ref(py);
        let object = outcome.object(py)?;
        let mut outcome = sync::lock(&self.outcome);
        match &*outcome {
            Outcome::Object(first) => Ok(first.bind(py).clone()),
            Outcome::New { .. } => {
                *outcome = Outcome::from(&object);
                Ok(object)
            }
        }
    }

    /// `Work[numpy.ndarray]`, for annotations.
    #[classmethod]
    fn __class_getitem__<'py>(class: &Bound<'py, PyType>, _item: &Bound<'py, PyAny>) -> Bound<'py, PyType> {
        class.clone()
    }
}
