//! The fields of a request, checked one by one so that an error names its field.

use serde_json::{Map, Value};

use super::ApiError;
use super::bodies::{Body, Rule, integer};

/// The JSON object of a request.
#[derive(Debug)]
pub(crate) struct Object(Map<String, Value>);

impl Object {
    /// # Errors
    /// The body is no JSON object.
    pub(crate) fn parse(body: &[u8]) -> Result<Self, ApiError> {
        match serde_json::from_slice(body).map_err(ApiError::Json)? {
            Value::Object(fields) => Ok(Self(fields)),
            _ => Err(ApiError::NoObject),
        }
    }

    /// The object with these fields.
    pub(super) fn new(fields: Map<String, Value>) -> Self {
        Self(fields)
    }

    /// Whether there is a field that is not `null`.
    pub(crate) fn has(&self, name: &str) -> bool {
        self.0.get(name).is_some_and(|value| !value.is_null())
    }

    /// The fields of a request with this body: without those that have no effect, and those that are not supported but ask for
    /// nothing.
    ///
    /// # Errors
    /// A field asks for something that is not supported, or one is missing.
    pub(crate) fn fields(mut self, body: &'static Body) -> Result<Fields, ApiError> {
        // The chat goes without functions that the model may not call.
        if self.0.get("function_call").is_some_and(|call| call == "none") {
            self.0.remove("functions");
        }
        for (name, rule) in body.rules() {
            match rule {
                Rule::Obeyed(_) => {}
                Rule::WithoutEffect => _ = self.0.remove(name),
                Rule::Refused(refused) => match self.0.remove(name) {
                    Some(value) if !value.is_null() && !refused.is_harmless(&value) => {
                        return Err(ApiError::Unsupported { param: name, instead: refused.instead });
                    }
                    _ => {}
                },
            }
        }
        let is_missing = |rule| matches!(rule, Rule::Obeyed(field) if field.is_required && !self.has(field.name));
        match body.rules().find(|(_, rule)| is_missing(*rule)) {
            Some((name, _)) => Err(ApiError::param(name, "is missing")),
            None => Ok(Fields { fields: self.0, body }),
        }
    }
}

/// The fields of a JSON object that were not taken yet. A field that is `null` counts as absent.
///
/// The table of the body says what value each field can have, and so which error the methods return.
#[derive(Debug)]
pub(crate) struct Fields {
    fields: Map<String, Value>,
    body: &'static Body,
}

impl Fields {
    /// All fields that were not taken yet.
    pub(super) fn rest(&mut self) -> Map<String, Value> {
        std::mem::take(&mut self.fields)
    }

    /// The value of a field.
    ///
    /// # Errors
    /// The table does not permit it.
    pub(crate) fn value(&mut self, name: &str) -> Result<Option<Value>, ApiError> {
        let Some(Rule::Obeyed(field)) = self.body.rule(name) else {
            debug_assert!(false, "a handler reads the field {name:?}, which its table does not have");
            return Ok(None);
        };
        let Some(value) = self.fields.remove(name).filter(|value| !value.is_null()) else { return Ok(None) };
        match field.shape.fault(&value) {
            None => Ok(Some(value)),
            Some((part, why)) => Err(ApiError::param(format!("{name}{part}"), why)),
        }
    }

    /// A boolean.
    ///
    /// # Errors
    /// Those of [`value`](Self::value).
    pub(crate) fn bool(&mut self, name: &str) -> Result<Option<bool>, ApiError> {
        Ok(self.value(name)?.and_then(|value| value.as_bool()))
    }

    /// A text.
    ///
    /// # Errors
    /// Those of [`value`](Self::value).
    pub(crate) fn text(&mut self, name: &str) -> Result<Option<String>, ApiError> {
        Ok(self.value(name)?.and_then(|value| match value {
            Value::String(text) => Some(text),
            _ => None,
        }))
    }

    /// An object.
    ///
    /// # Errors
    /// Those of [`value`](Self::value).
    pub(crate) fn object(&mut self, name: &str) -> Result<Option<Map<String, Value>>, ApiError> {
        Ok(self.value(name)?.and_then(|value| match value {
            Value::Object(object) => Some(object),
            _ => None,
        }))
    }

    /// A list; without one, an empty one.
    ///
    /// # Errors
    /// Those of [`value`](Self::value).
    pub(crate) fn list(&mut self, name: &str) -> Result<Vec<Value>, ApiError> {
        Ok(match self.value(name)? {
            Some(Value::Array(values)) => values,
            _ => Vec::new(),
        })
    }

    /// The objects of a list; without one, none.
    ///
    /// # Errors
    /// Those of [`value`](Self::value).
    pub(crate) fn objects(&mut self, name: &str) -> Result<Vec<Map<String, Value>>, ApiError> {
        let object = |value| match value {
            Value::Object(object) => Some(object),
            _ => None,
        };
        Ok(self.list(name)?.into_iter().filter_map(object).collect())
    }

    /// A number.
    ///
    /// # Errors
    /// Those of [`value`](Self::value).
    pub(crate) fn number(&mut self, name: &str) -> Result<Option<f64>, ApiError> {
        Ok(self.value(name)?.and_then(|value| value.as_f64()))
    }

    /// An integer.
    ///
    /// # Errors
    /// Those of [`value`](Self::value).
    pub(crate) fn integer(&mut self, name: &str) -> Result<Option<i64>, ApiError> {
        Ok(self.value(name)?.as_ref().and_then(integer))
    }

    /// A number of things; -1, which is no limit for some clients, counts as absent.
    ///
    /// # Errors
    /// Those of [`value`](Self::value).
    pub(crate) fn count(&mut self, name: &str) -> Result<Option<usize>, ApiError> {
        Ok(self.integer(name)?.and_then(|count| usize::try_from(count).ok()))
    }
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

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::super::bodies::{COMPLETION, all};
    use super::*;

    #[test]
    fn a_body_that_is_no_object_is_refused() {
        assert!(matches!(Object::parse(b"{"), Err(ApiError::Json(_))));
        assert!(matches!(Object::parse(b"\xff"), Err(ApiError::Json(_))));
        assert!(matches!(Object::parse(b"[]"), Err(ApiError::NoObject)));
        let deep = "[".repeat(100_000);
        assert!(matches!(Object::parse(deep.as_bytes()), Err(ApiError::Json(_))));
    }

    #[test]
    fn a_value_that_the_table_does_not_permit_is_refused_by_name() {
        let body = json!({"prompt": "x", "temperature": "1", "top_p": 3, "n": 1.0, "seed": null, "stop": ["a", ""]});
        let mut fields = Object::parse(body.to_string().as_bytes()).unwrap().fields(&COMPLETION).unwrap();
        assert_eq!(fields.number("temperature").unwrap_err().to_string(), "`temperature` must be a number");
        assert_eq!(fields.number("top_p").unwrap_err().to_string(), "`top_p` must be between 0 and 1, not 3");
        assert_eq!(fields.value("stop").unwrap_err().to_string(), "`stop[1]` can't be an empty string");
        assert_eq!((fields.count("n").unwrap(), fields.integer("seed").unwrap()), (Some(1), None));
    }

    #[test]
    fn a_field_that_is_not_supported_is_refused_by_its_name_unless_its_value_changes_nothing() {
        let values = json!([true, false, 0.5, 2, "x", "json", ["x"], {"x": 1}]);
        for body in all() {
            let refused = |name: &str, value: &Value| {
                let object = Object::new(Map::from_iter([(name.to_owned(), value.clone())]));
                match object.fields(body) {
                    Err(ApiError::Unsupported { param, .. }) => Some(param),
                    _ => None,
                }
            };
            for (name, rule) in body.rules() {
                let Rule::Refused(rule) = rule else { continue };
                let harmless: Vec<Value> = rule.values().chain([Value::Null]).collect();
                for value in &harmless {
                    assert_eq!(refused(name, value), None, "{name}: {value}");
                }
                for value in values.as_array().unwrap().iter().filter(|value| !harmless.contains(value)) {
                    assert_eq!(refused(name, value), Some(name), "{name}: {value}");
                }
            }
        }
    }

    #[test]
    fn a_token_outside_of_the_vocabulary_is_refused() {
        assert_eq!(token("t", &Value::from(9), 10).unwrap(), 9);
        for value in [Value::from(10), Value::from(-1), Value::from("1"), Value::from(u64::MAX)] {
            assert!(token("t", &value, 10).is_err(), "{value}");
        }
    }
}
