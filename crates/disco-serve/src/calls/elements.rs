//! Arguments that are elements: `<parameter=KEY>VALUE</parameter>`, up to `</function>`.
//!
//! A value can't have `</parameter>` before the begin of another parameter or the end of the function, a key no `>`.

use serde_json::Value;

use super::Tool;
use super::reading::{Not, Taken, either, past, until};

pub(super) const FUNCTION: &str = "<function=";
pub(super) const FUNCTION_END: &str = "</function>";
pub(super) const PARAMETER: &str = "<parameter=";
const PARAMETER_END: &str = "</parameter>";
const CALL_END: &str = "</tool_call>";

/// Reads the arguments of a call, a whole one at a time.
#[derive(Debug)]
pub(super) struct Elements {
    /// The schemas of the arguments.
    schemas: Value,
    has_some: bool,
    /// Bytes of a value in which its end was looked for.
    searched: usize,
}

impl Elements {
    pub(super) fn new(name: &str, tools: &[Tool]) -> Self {
        let tool = tools.iter().find(|tool| tool.name == name);
        let schemas = tool.map_or(Value::Null, |tool| tool.parameters["properties"].clone());
        Self { schemas, has_some: false, searched: 0 }
    }

    pub(super) fn take(&mut self, text: &str) -> Taken {
        let mut taken = Taken::default();
        while !taken.is_end {
            let rest = text[taken.length..].trim_start();
            let start = text.len() - rest.len();
            let result = past(rest, FUNCTION_END).map(|_| (FUNCTION_END.len(), true));
            match either(result, self.parameter(rest, &mut taken.json).map(|length| (length, false))) {
                Ok((length, is_end)) => (taken.length, taken.is_end) = (start + length, is_end),
                Err(Not::Yet) => return taken,
                Err(Not::Ever) => taken.is_end = true,
            }
        }
        taken.json += if self.has_some { "}" } else { "{}" };
        taken
    }

    /// Adds an argument. Returns the length of its element.
    fn parameter(&mut self, text: &str, json: &mut String) -> Result<usize, Not> {
        let (key, body) = until(past(text, PARAMETER)?, '>')?;
        let (value, behind) = loop {
            let Some(place) = body[self.searched..].find(PARAMETER_END).map(|place| self.searched + place) else {
                // The mark may have come in part.
                self.searched = body.floor_char_boundary(body.len().saturating_sub(PARAMETER_END.len() - 1));
                return Err(Not::Yet);
            };
            let behind = &body[place + PARAMETER_END.len()..];
            let next = behind.trim_start();
            match either(either(past(next, PARAMETER), past(next, FUNCTION_END)), past(next, CALL_END)) {
                Ok(_) => break (&body[..place], behind),
                Err(Not::Yet) => return Err(Not::Yet),
                Err(Not::Ever) => self.searched = place + 1,
            }
        };
        let value = value.strip_prefix('\n').unwrap_or(value);
        let value = value.strip_suffix('\n').unwrap_or(value);
        let value = typed(value, &self.schemas[key]);
        *json += &format!("{}{}:{value}", if self.has_some { "," } else { "{" }, Value::from(key));
        (self.has_some, self.searched) = (true, 0);
        Ok(text.len() - behind.len())
    }
}

/// The value that a text stands for: itself if the schema allows a text and no other value that it may be, else JSON or Python's word for
/// it if it is that.
fn typed(text: &str, schema: &Value) -> Value {
    let others = ["anyOf", "oneOf"].into_iter().filter_map(|name| schema[name].as_array()).flatten();
    let all: Vec<_> = others.chain([schema]).collect();
    let is_choice = |value: &Value| {
        all.iter()
            .any(|it| it.get("const") == Some(value) || it["enum"].as_array().is_some_and(|all| all.contains(value)))
    };
    let types = all.iter().flat_map(|it| match &it["type"] {
        Value::Array(types) => types.iter().collect(),
        only => vec![only],
    });
    let types: Vec<_> = types.filter_map(Value::as_str).collect();
    let value = match text.trim() {
        "True" => Some(Value::Bool(true)),
        "False" => Some(Value::Bool(false)),
        "None" => Some(Value::Null),
        json => serde_json::from_str::<Value>(json).ok(),
    };
    let name = value.as_ref().map(|value| match value {
        Value::Null => "null",
        Value::Bool(_) => "boolean",
        Value::Number(_) => "number",
        Value::String(_) => "string",
        Value::Array(_) => "array",
        Value::Object(_) => "object",
    });
    let is_text = is_choice(&text.into()) || types.contains(&"string");
    let is_other = name.is_some_and(|name| types.contains(&name) && name != "string")
        || name == Some("number") && types.contains(&"integer")
        || value.as_ref().is_some_and(|value| is_choice(value) && !value.is_string());
    match value {
        Some(value) if is_other || !is_text => value,
        _ => text.into(),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn the_schema_says_what_a_value_is() {
        let any = json!({"anyOf": [{"type": "string"}, {"type": "null"}]});
        for (text, schema, expected) in [
            ("1", json!({"type": "string"}), json!("1")),
            ("null", json!({"type": "string"}), json!("null")),
            ("1", json!({"type": "integer"}), json!(1)),
            ("1", json!({"type": ["string", "integer"]}), json!(1)),
            ("1", json!({"enum": ["1", "2"]}), json!("1")),
            ("True", json!({"type": "boolean"}), json!(true)),
            ("None", any.clone(), json!(null)),
            ("1", any, json!("1")),
            ("{\"a\": [1]}", json!({"type": "object"}), json!({"a": [1]})),
            ("{\"a\": ", json!({"type": "object"}), json!("{\"a\": ")),
            ("True story", Value::Null, json!("True story")),
            ("1", Value::Null, json!(1)),
        ] {
            assert_eq!(typed(text, &schema), expected, "{text} of {schema}");
        }
    }
}
