//! Events of a trace, as an array of JSON.

use std::borrow::Cow;
use std::io::{self, Write};

use serde::Serialize;

/// One event.
#[derive(Serialize)]
pub(super) struct Event<'a, A> {
    pub(super) ph: &'a str,
    pub(super) name: Cow<'a, str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) cat: Option<&'a str>,
    pub(super) pid: u64,
    pub(super) tid: u64,
    /// Microseconds, as `dur`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) ts: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) dur: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) id: Option<u64>,
    /// Binding of a flow to the slice that encloses it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) bp: Option<&'a str>,
    /// Scope of an instant.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) s: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) args: Option<A>,
}

impl<A> Default for Event<'_, A> {
    fn default() -> Self {
        let (name, none) = (Cow::Borrowed(""), None);
        Self { ph: "", name, cat: none, pid: 0, tid: 0, ts: None, dur: None, id: None, bp: none, s: none, args: None }
    }
}

/// The array of events.
pub(super) struct Events<'o> {
    out: &'o mut dyn Write,
    /// The time at which the file starts.
    base: i128,
    is_empty: bool,
}

impl<'o> Events<'o> {
    /// An array that begins at the time `base`.
    pub(super) fn new(out: &'o mut dyn Write, base: i128) -> Self {
        Self { out, base, is_empty: true }
    }

    pub(super) fn add<A: Serialize>(&mut self, event: &Event<'_, A>) -> io::Result<()> {
        self.out.write_all(if self.is_empty { b"[\n" } else { b",\n" })?;
        self.is_empty = false;
        Ok(serde_json::to_writer(&mut *self.out, event)?)
    }

    /// A time on the controller's clock in microseconds since the start of the file.
    pub(super) fn time(&self, time: i128) -> f64 {
        microseconds(time - self.base)
    }

    /// Writes the end of the array.
    pub(super) fn end(self) -> io::Result<()> {
        self.out.write_all(b"\n]\n")
    }
}

pub(super) fn microseconds(nanoseconds: i128) -> f64 {
    nanoseconds.max(0) as f64 / 1e3
}
