//! JSON as Python writes it.

use minijinja::value::{Serde, Value};
use serde::Serialize as _;
use serde_json::Value as Json;
use serde_json::ser::{Formatter, Serializer};

/// Appends a value as JSON.
pub(super) fn serialize(value: &Value, bytes: &mut Vec<u8>, formatter: impl Formatter) -> serde_json::Result<()> {
    value.serialize(&mut Serializer::with_formatter(bytes, formatter))
}

/// JSON on one line, as Python writes it.
pub(super) fn line(value: &Json) -> String {
    let mut bytes = Vec::new();
    match serialize(&Value::from(Serde(value)), &mut bytes, PythonFormatter) {
        Ok(()) => String::from_utf8_lossy(&bytes).into_owned(),
        Err(_) => value.to_string(),
    }
}

/// One line with a space after each comma and colon.
pub(super) struct PythonFormatter;

impl Formatter for PythonFormatter {
    fn begin_array_value<W: ?Sized + std::io::Write>(&mut self, writer: &mut W, first: bool) -> std::io::Result<()> {
        if first { Ok(()) } else { writer.write_all(b", ") }
    }

    fn begin_object_key<W: ?Sized + std::io::Write>(&mut self, writer: &mut W, first: bool) -> std::io::Result<()> {
        if first { Ok(()) } else { writer.write_all(b", ") }
    }

    fn begin_object_value<W: ?Sized + std::io::Write>(&mut self, writer: &mut W) -> std::io::Result<()> {
        writer.write_all(b": ")
    }
}
