//! Disco's errors as Python's exceptions, and exceptions of worker functions as Disco's errors.

use std::fmt;

use disco::error::ErrorKind;
use disco::{Error, WorkerId};
use pyo3::prelude::*;
use pyo3::types::PyDict;
use serde::{Deserialize, Serialize};

/// The most bytes of a text, of a traceback and of a pickled exception that cross a lane: together less than
/// [`UserError::MAX_BYTES`](disco::error::UserError::MAX_BYTES).
const MOST: usize = 20 << 10;

/// An exception of a Python function, on its way to the controller.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct PythonError {
    /// Module and name of its type.
    type_name: String,
    text: String,
    traceback: String,
    /// The pickled exception, if it can be pickled and is not too large; each byte is the character of that number.
    pickled: Option<String>,
    /// Disco's error that the function has passed on or failed because of, for the worker's own report.
    #[serde(skip)]
    cause: Option<Error>,
}

impl fmt::Display for PythonError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.text.as_str() {
            "" => f.write_str(&self.type_name),
            text => write!(f, "{}: {text}", self.type_name),
        }
    }
}

impl std::error::Error for PythonError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        self.cause.as_ref().map(|cause| cause as _)
    }
}

disco::register_error!(PythonError);

impl PythonError {
    /// What the exception says, and as much of itself as can be sent.
    pub(crate) fn of(py: Python<'_>, error: &PyErr) -> Self {
        let described = || -> PyResult<(String, String, String, Option<String>)> {
            error.value(py).setattr("__traceback__", error.traceback(py))?;
            py.import("disco._errors")?.getattr("describe")?.call1((error.value(py), MOST))?.extract()
        };
        // Code of the program, which may fail in turn.
        let described = described().unwrap_or_else(|_| {
            let name = error.get_type(py).qualname().map_or_else(|_| "Exception".to_owned(), |name| name.to_string());
            (name, error.to_string(), String::new(), None)
        });
        let (mut type_name, mut text, mut traceback, pickled) = described;
        type_name.truncate(type_name.floor_char_boundary(1 << 10));
        cut(&mut text);
        cut(&mut traceback);
        Self { type_name, text, traceback, pickled, cause: native(error.value(py).as_any()) }
    }
}

/// Disco's error of an exception, or of the exceptions that have caused it.
fn native(exception: &Bound<'_, PyAny>) -> Option<Error> {
    let mut exception = exception.clone();
    // The chain may be a circle.
    for _ in 0..16 {
        if let Ok(native) = exception.getattr("_native").and_then(|native| Ok(native.cast_into::<NativeError>()?)) {
            return Some(native.get().0.clone());
        }
        let next = exception.getattr("__cause__").ok().filter(|cause| !cause.is_none());
        exception = next.or_else(|| exception.getattr("__context__").ok().filter(|context| !context.is_none()))?;
    }
    None
}

/// Keeps the beginning and the end.
fn cut(text: &mut String) {
    if text.len() > MOST {
        let (head, tail) = (text.floor_char_boundary(MOST / 2), text.ceil_char_boundary(text.len() - MOST / 2));
        *text = format!("{} … {}", &text[..head], &text[tail..]);
    }
}

/// The exception for an error of Disco.
pub(crate) fn raised(py: Python<'_>, error: &Error) -> PyErr {
    exception(py, error).unwrap_or_else(|failed| failed)
}

/// The exception group for the errors of several workers.
pub(crate) fn raised_group(py: Python<'_>, first: &Error, all: &[Error]) -> PyErr {
    let group = || -> PyResult<PyErr> {
        let all: Vec<_> = all.iter().map(|error| raised(py, error).into_value(py)).collect();
        let group =
            py.import("disco._errors")?.getattr("make_group")?.call1((raised(py, first).into_value(py), all))?;
        Ok(PyErr::from_value(group))
    };
    group().unwrap_or_else(|failed| failed)
}

/// Disco's error behind an exception, which a worker function may pass on.
#[pyclass(frozen, module = "disco._disco")]
pub(crate) struct NativeError(Error);

fn exception(py: Python<'_>, error: &Error) -> PyResult<PyErr> {
    let fields = PyDict::new(py);
    let numbers = |workers: disco::WorkerRange| workers.iter().map(WorkerId::index).collect::<Vec<_>>();
    let (class, kind) = match error {
        Error::Worker(failure) | Error::Earlier { failure, .. } => {
            fields.set_item("worker", failure.worker.index())?;
            fields.set_item("function", &failure.operation)?;
            fields.set_item("command", failure.command)?;
            fields.set_item("message", &failure.message)?;
            if let Some(thrown) = failure.user.as_ref().and_then(|user| user.downcast_ref::<PythonError>()) {
                fields.set_item("thrown", (&thrown.type_name, &thrown.text, &thrown.traceback, &thrown.pickled))?;
            }
            let class = match (error, &failure.kind) {
                (Error::Earlier { .. }, _) => "Earlier",
                (_, ErrorKind::Cancelled) => "Cancelled",
                _ => "WorkerError",
            };
            (class, name_of(&failure.kind))
        }
        other => (name_of(&other.kind()), name_of(&other.kind())),
    };
    match error.kind() {
        ErrorKind::Lost { workers } => fields.set_item("workers", numbers(workers))?,
        ErrorKind::Deadline { after } | ErrorKind::Stalled { after } => {
            fields.set_item("after", after.as_secs_f64())?
        }
        ErrorKind::Library { function, code, .. } => {
            if class == "LibraryError" {
                fields.set_item("function", &*function)?;
            }
            fields.set_item("code", code)?;
        }
        _ => {}
    }
    let make = py.import("disco._errors")?.getattr("make")?;
    let exception = make.call1((class, kind, error.to_string(), fields))?;
    exception.setattr("_native", Py::new(py, NativeError(error.clone()))?)?;
    Ok(PyErr::from_value(exception))
}

/// The name of a kind of errors.
fn name_of(kind: &ErrorKind) -> &'static str {
    match kind {
        ErrorKind::User => "User",
        ErrorKind::Panicked => "Panicked",
        ErrorKind::Aborted => "Aborted",
        ErrorKind::Cancelled => "Cancelled",
        ErrorKind::Broken => "Broken",
        ErrorKind::Deadline { .. } => "Deadline",
        ErrorKind::Stalled { .. } => "Stalled",
        ErrorKind::Lost { .. } => "Lost",
        ErrorKind::Stuck => "Stuck",
        ErrorKind::Unsupported { .. } => "Unsupported",
        ErrorKind::Unavailable => "Unavailable",
        ErrorKind::Library { .. } => "LibraryError",
        ErrorKind::System { .. } => "SystemFailure",
        ErrorKind::OutOfMemory { .. } => "OutOfMemory",
        ErrorKind::Mismatch => "Mismatch",
        ErrorKind::Invalid | ErrorKind::NoSuchWorker => "Invalid",
        ErrorKind::Argument => "ArgumentError",
        ErrorKind::UnknownFunction => "UnknownFunction",
        ErrorKind::Busy => "Busy",
        ErrorKind::Protocol => "ProtocolError",
        ErrorKind::Refused => "Refused",
        ErrorKind::State => "StateError",
        ErrorKind::Closed => "Closed",
        ErrorKind::ForeignRef => "ForeignRef",
        ErrorKind::NoCommunicator => "NoCommunicator",
        ErrorKind::NotRestored { .. } => "NotRestored",
        _ => "DiscoError",
    }
}

/// The exception for a wait that has passed its limit.
pub(crate) fn timeout(py: Python<'_>, seconds: f64) -> PyErr {
    let text = format!(
        "no result after {seconds} s: the wait has ended. What is submitted goes on, and a handle can be waited for again"
    );
    let make = || py.import("disco._errors")?.getattr("make")?.call1(("Timeout", "Timeout", text, PyDict::new(py)));
    make().map_or_else(|failed| failed, PyErr::from_value)
}
