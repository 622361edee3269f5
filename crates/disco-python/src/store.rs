//! The key-value store of a session.

use std::sync::Arc;
use std::time::Duration;

use disco_core::store;
use pyo3::prelude::*;
use pyo3::types::PyBytes;

use crate::errors;
use crate::lock::detached;

/// A key-value store that all workers of a session share, until the next recovery. Values are bytes. Its methods raise `Aborted`
/// once another worker has failed.
#[pyclass(frozen, module = "disco._disco")]
pub(crate) struct Store(pub(crate) Arc<dyn store::Store>);

impl Store {
    fn ask<T>(&self, py: Python<'_>, ask: impl FnOnce(&dyn store::Store) -> disco::Result<T>) -> PyResult<T> {
        detached(py, || ask(&*self.0)).map_err(|error| errors::raised(py, &error))
    }
}

#[pymethods]
impl Store {
    /// Sets `key` to `value`.
    fn set(&self, py: Python<'_>, key: &str, value: &[u8]) -> PyResult<()> {
        self.ask(py, |store| store.set(key, value))
    }

    /// The value of `key`, or `None` if it is not set.
    fn get<'py>(&self, py: Python<'py>, key: &str) -> PyResult<Option<Bound<'py, PyBytes>>> {
        Ok(self.ask(py, |store| store.get(key))?.map(|value| PyBytes::new(py, &value)))
    }

    /// Waits until `key` is set, and returns its value. Raises `Deadline` after `timeout` seconds.
    fn wait<'py>(&self, py: Python<'py>, key: &str, timeout: f64) -> PyResult<Bound<'py, PyBytes>> {
        let limit = Duration::try_from_secs_f64(timeout.max(0.0)).unwrap_or(Duration::MAX);
        Ok(PyBytes::new(py, &self.ask(py, |store| store.wait(key, limit))?))
    }

    /// Adds to the number under `key`, and returns the sum. A key that is not set counts as 0.
    fn add(&self, py: Python<'_>, key: &str, amount: i64) -> PyResult<i64> {
        self.ask(py, |store| store.add(key, amount))
    }

    /// Sets `key` to `new` if its value is `expected`, where `None` is a key that is not set. Returns the value afterwards.
    fn compare_and_set<'py>(
        &self,
        py: Python<'py>,
        key: &str,
        expected: Option<&[u8]>,
        new: &[u8],
    ) -> PyResult<Bound<'py, PyBytes>> {
        Ok(PyBytes::new(py, &self.ask(py, |store| store.compare_and_set(key, expected, new))?))
    }

    /// Removes `key`, and returns whether it was set.
    fn delete(&self, py: Python<'_>, key: &str) -> PyResult<bool> {
        self.ask(py, |store| store.delete(key))
    }
}
