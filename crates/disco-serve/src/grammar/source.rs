//! What clients ask for.

use llguidance::api::TopLevelGrammar;
use serde_json::{Value, json};

/// The most bytes of a grammar.
const MAX_BYTES: usize = 256 << 10;
/// The most levels of a schema.
const MAX_DEPTH: usize = 64;
/// White space between the tokens of JSON: enough for a line and its indentation. Without a bound, a model may write it for ever.
const SPACE: &str = r"[ \n\r\t]{0,40}";

/// A set of texts.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Grammar {
    /// JSON of this schema, a JSON text.
    Schema(String),
    /// What a regular expression of Rust's `regex` matches in whole.
    Regex(String),
    /// Lark's notation as `llguidance` has it, from the rule `start` on.
    Lark(String),
}

impl Grammar {
    /// JSON of a schema. Keys are in the order of the schema.
    ///
    /// # Errors
    /// It is no schema, or nested too deep.
    pub(crate) fn schema(schema: Value) -> Result<Self, String> {
        Ok(Self::Schema(bounded(schema)?.to_string()))
    }

    /// Any JSON object.
    pub(crate) fn any_object() -> Self {
        Self::Schema(json!({"type": "object", "x-guidance": {"whitespace_pattern": SPACE}}).to_string())
    }

    /// One of some texts.
    pub(crate) fn choice(texts: &[String]) -> Self {
        let texts: Vec<_> = texts.iter().map(|text| Value::from(text.as_str()).to_string()).collect();
        Self::Lark(format!("start: {}", texts.join(" | ")))
    }

    /// What the model thinks, its end by this mark, perhaps a special token, and then this grammar.
    pub(crate) fn behind(self, close: &str, special: Option<u32>) -> Self {
        let thought = match special {
            Some(token) => format!("thought: THOUGHT? <[{token}]>\nTHOUGHT: /(?s:.+)/"),
            None => format!("thought[lazy]: /(?s:.*)/ {}", Value::from(close)),
        };
        let body = match self {
            Self::Schema(schema) => format!("%json {schema}"),
            Self::Regex(regex) => format!("/{}/", regex.replace('/', "\\/")),
            Self::Lark(grammar) => format!("%lark {{\n{grammar}\n}}"),
        };
        Self::Lark(format!("start: thought SPACE? body\n{thought}\nSPACE: /\\s{{1,8}}/\nbody: {body}\n"))
    }

    pub(super) fn check_size(&self) -> Result<(), String> {
        let (Self::Schema(text) | Self::Regex(text) | Self::Lark(text)) = self;
        if text.len() > MAX_BYTES { Err(format!("has more than {MAX_BYTES} bytes")) } else { Ok(()) }
    }

    pub(crate) fn compilable(&self) -> Result<TopLevelGrammar, serde_json::Error> {
        Ok(match self {
            Self::Schema(schema) => TopLevelGrammar::from_json_schema(serde_json::from_str(schema)?),
            Self::Regex(regex) => TopLevelGrammar::from_regex(regex),
            Self::Lark(grammar) => TopLevelGrammar::from_lark(grammar.clone()),
        })
    }
}

/// A schema of JSON with bounded white space.
///
/// # Errors
/// It is no schema, or nested too deep.
pub(crate) fn bounded(schema: Value) -> Result<Value, String> {
    let mut schema = match schema {
        Value::Bool(true) => json!({}),
        Value::Object(_) => schema,
        _ => return Err("must be an object".to_owned()),
    };
    if is_deeper(&schema, MAX_DEPTH) {
        return Err(format!("has more than {MAX_DEPTH} levels"));
    }
    // A client's would set options of the compiler.
    schema["x-guidance"] = json!({"whitespace_pattern": SPACE});
    Ok(schema)
}

fn is_deeper(value: &Value, levels: usize) -> bool {
    match value {
        _ if levels == 0 => true,
        Value::Array(values) => values.iter().any(|value| is_deeper(value, levels - 1)),
        Value::Object(entries) => entries.values().any(|value| is_deeper(value, levels - 1)),
        _ => false,
    }
}
