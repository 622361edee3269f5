//! The options of a session, which Python passes as a dict after a check of their names.

use std::path::PathBuf;
use std::time::Duration;

use disco::{Builder, Deadlines, ReplacementPolicy, SessionKind, Token};
use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::PyDict;

use crate::errors;
use crate::serve::Invitations;

/// The builder that the options describe, and the kind of its session.
pub(crate) fn builder(options: &Bound<'_, PyDict>) -> PyResult<(Builder, SessionKind)> {
    let py = options.py();
    let given = Options(options);
    let failed = |error: disco::Error| errors::raised(py, &error);
    let kind: SessionKind = given.required::<String>("kind")?.parse().map_err(failed)?;
    let workers: usize = given.required("workers")?;
    let nodes: Option<usize> = given.get("nodes")?;
    let mut builder = Builder::new(kind, workers);
    builder = given.set(builder, "groups", Builder::groups)?;
    builder = given.set(builder, "check", Builder::check)?;
    builder = given.set(builder, "value_limit", Builder::value_limit)?;
    builder = given.set(builder, "apart", Builder::apart)?;
    builder = given.seconds(builder, "collective_deadline", Builder::collective_deadline)?;
    builder = given.seconds(builder, "connect_deadline", Builder::connect_deadline)?;
    builder = given.seconds(builder, "start_deadline", Builder::start_deadline)?;
    builder = given.seconds(builder, "silence", Builder::silence)?;
    builder = given.seconds(builder, "heartbeat", Builder::heartbeat)?;
    let mut deadlines = Deadlines::default();
    deadlines = given.seconds(deadlines, "reply_deadline", Deadlines::with_reply)?;
    deadlines = given.seconds(deadlines, "call_deadline", Deadlines::with_call)?;
    deadlines = given.seconds(deadlines, "close_deadline", Deadlines::with_close)?;
    deadlines = given.seconds(deadlines, "stall_deadline", Deadlines::with_stall)?;
    deadlines = given.seconds(deadlines, "warn_after", Deadlines::with_warn)?;
    builder = builder.deadlines(deadlines);
    if let Some(path) = given.get::<PathBuf>("trace")? {
        builder = builder.trace(path);
    }
    if let Some(when) = given.get::<String>("replacement")? {
        builder = builder.replacement(match when.as_str() {
            "never" => ReplacementPolicy::never(),
            "when_asked" => ReplacementPolicy::when_asked(),
            "when_recovered" => ReplacementPolicy::when_recovered(),
            "at_once" => ReplacementPolicy::at_once(),
            other => {
                let text = format!("replacement={other:?}: it is never, when_asked, when_recovered or at_once");
                return Err(PyValueError::new_err(text));
            }
        });
    }
    let (log_dir, spares) = (given.get("log_dir")?, given.get("spares")?);
    let invitations = options.get_item("invitations")?;
    let invitations = invitations.map(|given| given.cast_into::<Invitations>()).transpose()?;
    builder = builder.process_options(|processes| {
        processes.launch = invitations.map(|invitations| invitations.get().launch());
        processes.log_dir = log_dir;
        processes.spares = spares.unwrap_or(0);
    });
    let token = match given.get::<String>("token")? {
        Some(text) => Some(Token::new(&text).map_err(failed)?),
        None => None,
    };
    let (listen, fan_out, encrypts) = (given.get("listen")?, given.get("fan_out")?, given.get("encrypts")?);
    let (max_pending, max_unsent) = (given.get("max_pending")?, given.get("max_unsent")?);
    builder = builder.node_options(|options| {
        options.count = nodes.unwrap_or(options.count);
        options.listen = listen;
        options.token = token;
        options.fan_out = fan_out;
        options.encrypts = encrypts;
        options.max_pending = max_pending;
        options.max_unsent = max_unsent;
    });
    Ok((builder, kind))
}

/// Options by name.
struct Options<'a, 'py>(&'a Bound<'py, PyDict>);

impl<'py> Options<'_, 'py> {
    fn get<T: for<'a> FromPyObject<'a, 'py, Error = PyErr>>(&self, name: &str) -> PyResult<Option<T>> {
        match self.0.get_item(name)? {
            Some(value) if !value.is_none() => Ok(Some(value.extract()?)),
            _ => Ok(None),
        }
    }

    fn required<T: for<'a> FromPyObject<'a, 'py, Error = PyErr>>(&self, name: &str) -> PyResult<T> {
        self.get(name)?.ok_or_else(|| PyTypeError::new_err(format!("{name} is missing")))
    }

    fn set<B, T: for<'a> FromPyObject<'a, 'py, Error = PyErr>>(
        &self,
        to: B,
        name: &str,
        set: impl FnOnce(B, T) -> B,
    ) -> PyResult<B> {
        Ok(match self.get(name)? {
            Some(value) => set(to, value),
            None => to,
        })
    }

    fn seconds<B>(&self, to: B, name: &str, set: impl FnOnce(B, Duration) -> B) -> PyResult<B> {
        match self.get::<f64>(name)? {
            Some(given) => Ok(set(to, seconds(name, given)?)),
            None => Ok(to),
        }
    }
}

/// The time of an option in seconds, which may be infinite.
pub(crate) fn seconds(name: &str, given: f64) -> PyResult<Duration> {
    match Duration::try_from_secs_f64(given) {
        Ok(time) => Ok(time),
        Err(_) if given == f64::INFINITY => Ok(Duration::MAX),
        Err(error) => Err(PyValueError::new_err(format!("{name}={given}: {error}"))),
    }
}
