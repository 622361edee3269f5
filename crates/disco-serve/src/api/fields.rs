//! The fields of a request, checked one by one so that an error names its field.

use std::ops::RangeInclusive;

use serde_json::{Map, Value};

use super::ApiError;

/// The fields of a JSON object that were not taken yet. A field that is `null` counts as absent.
#[derive(Debug)]
pub(crate) struct Fields(Map<String, Value>);

impl Fields {
    /// # Errors
    /// The body is no JSON object.
    pub(crate) fn parse(body: &[u8]) -> Result<Self, ApiError> {
        match serde_json::from_slice(body).map_err(ApiError::Json)? {
            Value::Object(fields) => Ok(Self(fields)),
            _ => Err(ApiError::NoObject),
        }
    }

    /// The fields of an object.
    pub(super) fn of(fields: Map<String, Value>) -> Self {
        Self(fields)
    }

    /// All fields that were not taken yet.
    pub(super) fn rest(&mut self) -> Map<String, Value> {
        std::mem::take(&mut self.0)
    }

    /// The value of a field, of any type.
    pub(crate) fn take(&mut self, name: &str) -> Option<Value> {
        self.0.remove(name).filter(|value| !value.is_null())
    }

    /// Whether a field is this text.
    pub(crate) fn is(&self, name: &str, text: &str) -> bool {
        self.0.get(name).is_some_and(|value| value == text)
    }

    /// # Errors
    /// The field is no boolean.
    pub(crate) fn bool(&mut self, name: &str) -> Result<Option<bool>, ApiError> {
        self.typed(name, "a boolean", |value| value.as_bool())
    }

    /// # Errors
    /// The field is no text.
    pub(crate) fn text(&mut self, name: &str) -> Result<Option<String>, ApiError> {
        self.typed(name, "a string", |value| value.as_str().map(str::to_owned))
    }

    /// # Errors
    /// The field is no object.
    pub(crate) fn object(&mut self, name: &str) -> Result<Option<Map<String, Value>>, ApiError> {
        self.typed(name, "an object", |value| value.as_object().cloned())
    }

    /// # Errors
    /// The field is no list, or has more than `limit` entries.
    pub(crate) fn list(&mut self, name: &str, limit: usize) -> Result<Option<Vec<Value>>, ApiError> {
        match self.take(name) {
            None => Ok(None),
            Some(Value::Array(entries)) if entries.len() <= limit => Ok(Some(entries)),
            Some(Value::Array(entries)) => {
                Err(ApiError::param(name, format!("can have at most {limit} entries, not {}", entries.len())))
            }
            Some(_) => Err(ApiError::param(name, "must be a list")),
        }
    }

    /// # Errors
    /// The field is no number in the range.
    pub(crate) fn number(&mut self, name: &str, range: RangeInclusive<f64>) -> Result<Option<f64>, ApiError> {
        let Some(number) = self.typed(name, "a number", Value::as_f64)? else { return Ok(None) };
        if range.contains(&number) { Ok(Some(number)) } else { Err(outside(name, &range, number)) }
    }

    /// # Errors
    /// The field is no integer in the range.
    pub(crate) fn integer(&mut self, name: &str, range: RangeInclusive<i64>) -> Result<Option<i64>, ApiError> {
        let Some(number) = self.typed(name, "an integer", integer)? else { return Ok(None) };
        if range.contains(&number) { Ok(Some(number)) } else { Err(outside(name, &range, number)) }
    }

    /// A number of things.
    ///
    /// # Errors
    /// The field is no integer, or less than `least`.
    pub(crate) fn count(&mut self, name: &str, least: i64) -> Result<Option<usize>, ApiError> {
        let Some(number) = self.typed(name, "an integer", integer)? else { return Ok(None) };
        match usize::try_from(number) {
            Ok(count) if number >= least => Ok(Some(count)),
            _ => Err(ApiError::param(name, format!("must be at least {least}, not {number}"))),
        }
    }

    /// A number of things; -1, which is no limit for some clients, counts as absent.
    ///
    /// # Errors
    /// Those of [`count`](Self::count).
    pub(crate) fn limit(&mut self, name: &str, least: i64) -> Result<Option<usize>, ApiError> {
        if self.0.get(name).and_then(integer) == Some(-1) {
            self.0.remove(name);
        }
        self.count(name, least)
    }

    fn typed<T>(
        &mut self,
        name: &str,
        what: &str,
        convert: impl Fn(&Value) -> Option<T>,
    ) -> Result<Option<T>, ApiError> {
        let Some(value) = self.take(name) else { return Ok(None) };
        convert(&value).map(Some).ok_or_else(|| ApiError::param(name, format!("must be {what}")))
    }
}

/// An integer, which some clients write as `1.0`.
pub(super) fn integer(value: &Value) -> Option<i64> {
    let whole = || value.as_f64().filter(|number| number.fract() == 0.0 && number.abs() < 2f64.powi(53));
    value.as_i64().or_else(|| whole().map(|number| number as i64))
}

/// A token of a vocabulary with `vocabulary` tokens.
///
/// # Errors
/// The vocabulary has no such token.
pub(super) fn token(param: &str, value: &Value, vocabulary: usize) -> Result<u32, ApiError> {
    let token = integer(value).and_then(|token| u32::try_from(token).ok());
    token.filter(|token| (*token as usize) < vocabulary).ok_or_else(|| {
        let value: String = value.to_string().chars().take(32).collect();
        ApiError::param(param, format!("has the token {value}, but tokens are integers from 0 to {}", vocabulary - 1))
    })
}

fn outside<T: std::fmt::Display>(name: &str, range: &RangeInclusive<T>, number: T) -> ApiError {
    ApiError::param(name, format!("must be between {} and {}, not {number}", range.start(), range.end()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fields(body: &str) -> Fields {
        Fields::parse(body.as_bytes()).unwrap()
    }

    #[test]
    fn a_body_that_is_no_object_is_refused() {
        assert!(matches!(Fields::parse(b"{"), Err(ApiError::Json(_))));
        assert!(matches!(Fields::parse(b"\xff"), Err(ApiError::Json(_))));
        assert!(matches!(Fields::parse(b"[]"), Err(ApiError::NoObject)));
        let deep = "[".repeat(100_000);
        assert!(matches!(Fields::parse(deep.as_bytes()), Err(ApiError::Json(_))));
    }

    #[test]
    fn a_value_of_another_type_or_outside_of_the_range_is_refused_by_name() {
        let mut fields = fields(r#"{"a": "1", "b": 3, "c": 1.5, "d": null, "f": -1, "g": 2.0}"#);
        assert_eq!(fields.number("a", 0.0..=1.0).unwrap_err().to_string(), "`a` must be a number");
        assert_eq!(fields.number("b", 0.0..=1.0).unwrap_err().to_string(), "`b` must be between 0 and 1, not 3");
        assert_eq!(fields.integer("c", 0..=1).unwrap_err().to_string(), "`c` must be an integer");
        assert_eq!(fields.count("f", 0).unwrap_err().to_string(), "`f` must be at least 0, not -1");
        assert_eq!(fields.count("g", 0).unwrap(), Some(2));
        assert_eq!(fields.number("d", 0.0..=1.0).unwrap(), None);
    }

    #[test]
    fn a_token_outside_of_the_vocabulary_is_refused() {
        assert_eq!(token("t", &Value::from(9), 10).unwrap(), 9);
        for value in [Value::from(10), Value::from(-1), Value::from("1"), Value::from(u64::MAX)] {
            assert!(token("t", &value, 10).is_err(), "{value}");
        }
    }
}
