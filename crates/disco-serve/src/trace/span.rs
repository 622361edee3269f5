//! What a span is.

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
    /// Facts about it, by names of the semantic conventions where they have one.
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

/// The value of an attribute.
#[derive(Clone, Debug, PartialEq)]
pub enum Value {
    /// A text.
    Text(String),
    /// Some texts.
    Texts(Vec<String>),
    /// A boolean.
    Bool(bool),
    /// An integer.
    Integer(i64),
    /// A number.
    Number(f64),
}

impl From<&str> for Value {
    fn from(text: &str) -> Self {
        Self::Text(text.to_owned())
    }
}

impl From<Vec<String>> for Value {
    fn from(texts: Vec<String>) -> Self {
        Self::Texts(texts)
    }
}

impl From<bool> for Value {
    fn from(value: bool) -> Self {
        Self::Bool(value)
    }
}

impl From<i64> for Value {
    fn from(number: i64) -> Self {
        Self::Integer(number)
    }
}

impl From<usize> for Value {
    fn from(number: usize) -> Self {
        Self::Integer(i64::try_from(number).unwrap_or(i64::MAX))
    }
}

impl From<f64> for Value {
    fn from(number: f64) -> Self {
        Self::Number(number)
    }
}
