//! Typed access to the JSON files beside safetensors. A key that is absent or `null` is `None`; one of another type is an
//! error.

use std::fs;
use std::path::Path;

use disco_candle::weights::foreign;
use serde_json::Value;

use crate::ModelError;

/// Reads a file as Python's `json` writes it, which may have `Infinity` and `NaN`.
pub(crate) fn read(file: &Path) -> Result<Value, ModelError> {
    let error = |why: String| ModelError::File { path: file.to_owned(), why };
    let text = fs::read_to_string(file).map_err(|why| error(why.to_string()))?;
    if let Some(what) = foreign(text.as_bytes()) {
        return Err(error(format!("it is {what}")));
    }
    serde_json::from_str(&without_infinities(&text)).map_err(|why| error(why.to_string()))
}

/// Numbers that JSON lacks, as strings, so that a key that needs a number refuses them.
fn without_infinities(text: &str) -> String {
    // Every second piece between quotation marks is inside of a string; an escaped mark does not end one.
    let mut inside = false;
    let mut plain = String::with_capacity(text.len());
    for piece in text.split_inclusive('"') {
        if inside {
            plain.push_str(piece);
            let escapes = piece.trim_end_matches('"').bytes().rev().take_while(|byte| *byte == b'\\').count();
            inside = escapes % 2 == 1;
            continue;
        }
        let named = piece.replace("Infinity", "\"Infinity\"").replace("-\"Infinity\"", "\"-Infinity\"");
        plain.push_str(&named.replace("NaN", "\"NaN\""));
        inside = piece.ends_with('"');
    }
    plain
}

/// A whole number.
pub(crate) fn number(json: &Value, key: &str) -> Result<Option<usize>, ModelError> {
    get(json, key, "a whole number", |value| value.as_u64().and_then(|number| usize::try_from(number).ok()))
}

/// A list of whole numbers; empty if the key is absent.
pub(crate) fn numbers(json: &Value, key: &str) -> Result<Vec<usize>, ModelError> {
    let number = |value: &Value| value.as_u64().and_then(|number| usize::try_from(number).ok());
    let numbers = get(json, key, "a list of whole numbers", |value| value.as_array()?.iter().map(number).collect())?;
    Ok(numbers.unwrap_or_default())
}

/// A number.
pub(crate) fn float(json: &Value, key: &str) -> Result<Option<f64>, ModelError> {
    get(json, key, "a number", Value::as_f64)
}

/// `true` or `false`.
pub(crate) fn flag(json: &Value, key: &str) -> Result<Option<bool>, ModelError> {
    get(json, key, "true or false", Value::as_bool)
}

/// A text.
pub(crate) fn text<'a>(json: &'a Value, key: &str) -> Result<Option<&'a str>, ModelError> {
    get(json, key, "a text", Value::as_str)
}

fn get<'a, T>(
    json: &'a Value,
    key: &str,
    expected: &str,
    convert: impl FnOnce(&'a Value) -> Option<T>,
) -> Result<Option<T>, ModelError> {
    match &json[key] {
        Value::Null => Ok(None),
        value => convert(value).map(Some).ok_or_else(|| wrong(key, expected, value)),
    }
}

pub(crate) fn wrong(key: &str, expected: &str, found: &Value) -> ModelError {
    ModelError::Key { key: key.into(), why: format!("expected {expected}, got {found}") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn infinities_of_python_are_read_and_are_no_numbers() {
        let text = r#"{"a": [0.0, Infinity, -Infinity, NaN], "Infinity": "a \"NaN\" \\", "b": NaN}"#;
        let json: Value = serde_json::from_str(&without_infinities(text)).unwrap();
        let expected = serde_json::json!({
            "a": [0.0, "Infinity", "-Infinity", "NaN"], "Infinity": "a \"NaN\" \\", "b": "NaN",
        });
        assert_eq!(json, expected);
        assert_eq!(
            float(&json, "b").unwrap_err().to_string(),
            "the configuration of the model can't be used: b: expected a number, got \"NaN\"",
        );
    }
}
