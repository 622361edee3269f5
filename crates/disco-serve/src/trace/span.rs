//! What a span is.

use serde_json::Value;

/// A part of a request's time.
#[derive(Clone, Debug, PartialEq)]
pub struct Span {
    /// Its number in the trace.
    pub id: u64,
    /// The span that it is a part of.
    pub parent: Option<u64>,
    /// Whether that one is of another program.
    pub has_remote_parent: bool,
    /// What it is.
    pub name: String,
    /// Nanoseconds since 1970.
    pub start: u64,
    /// Nanoseconds since 1970.
    pub end: u64,
    /// Facts about it, by names of the semantic conventions where they have one: texts, lists of texts, truth values and numbers.
    pub attributes: Vec<(&'static str, Value)>,
    /// What happened in it.
    pub events: Vec<Event>,
    /// Why it has failed.
    pub failure: Option<String>,
}

/// Something that happened at one time of a span.
#[derive(Clone, Debug, PartialEq)]
pub struct Event {
    /// What it is.
    pub name: &'static str,
    /// Nanoseconds since 1970.
    pub time: u64,
    /// Facts about it.
    pub attributes: Vec<(&'static str, Value)>,
}
