//! What clients ask for.

use llguidance::api::TopLevelGrammar;
use serde_json::{Value, json};

use super::harmless;

/// The most bytes of a grammar.
pub(crate) const MAX_BYTES: usize = 256 << 10;
/// The most levels of a schema, and references in it, each of which the compiler follows.
const MAX_DEPTH: usize = 64;
const MAX_REFERENCES: usize = 512;
/// The most values of a schema times its alternatives: the compiler copies what is beside them for each.
const MAX_PRODUCT: usize = 1_000_000;
/// The most rules of a grammar, each of which may lead to another one.
const MAX_RULES: usize = 2000;
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
    pub(crate) fn behind(&self, close: &str, special: Option<u32>) -> Self {
        let thought = match special {
            Some(token) => format!("thought: THOUGHT? <[{token}]>\nTHOUGHT: /(?s:.+)/"),
            None => format!("thought[lazy]: /(?s:.*)/ {}", Value::from(close)),
        };
        self.after("thought SPACE?", &format!("{thought}\nSPACE: /\\s{{1,8}}/\n"))
    }

    /// What the definition of Lark's notation `before` matches, by these rules, and then this grammar.
    pub(crate) fn after(&self, before: &str, rules: &str) -> Self {
        Self::Lark(format!("start: {before} body\n{rules}body: {}\n", self.definition()))
    }

    /// The definition of a rule in Lark's notation that has these texts.
    pub(crate) fn definition(&self) -> String {
        match self {
            Self::Schema(schema) => format!("%json {schema}"),
            Self::Regex(regex) => format!("/{}/", of_slashes(regex)),
            Self::Lark(grammar) => format!("%lark {{\n{grammar}\n}}"),
        }
    }

    pub(super) fn check_size(&self) -> Result<(), String> {
        let (Self::Schema(text) | Self::Regex(text) | Self::Lark(text)) = self;
        if text.len() > MAX_BYTES {
            return Err(format!("has more than {MAX_BYTES} bytes"));
        }
        match self {
            Self::Lark(text) if text.lines().filter(|line| line.contains(':')).count() > MAX_RULES => {
                Err(format!("has more than {MAX_RULES} rules"))
            }
            _ => Ok(()),
        }
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
    let mut size = Size::default();
    size.count(&schema);
    if size.references > MAX_REFERENCES {
        return Err(format!("has more than {MAX_REFERENCES} references"));
    }
    if size.values.saturating_mul(size.alternatives) > MAX_PRODUCT {
        return Err(format!(
            "has {} values and {} alternatives, which are too many together",
            size.values, size.alternatives
        ));
    }
    harmless::remove(&mut schema);
    // A client's would set options of the compiler.
    schema["x-guidance"] = json!({"whitespace_pattern": SPACE});
    Ok(schema)
}

/// What a schema has.
#[derive(Default)]
struct Size {
    values: usize,
    /// Of all lists of alternatives.
    alternatives: usize,
    references: usize,
}

impl Size {
    fn count(&mut self, value: &Value) {
        self.values += 1;
        match value {
            Value::Array(values) => values.iter().for_each(|value| self.count(value)),
            Value::Object(entries) => entries.iter().for_each(|(key, value)| {
                match (key.as_str(), value) {
                    ("allOf" | "anyOf" | "oneOf", Value::Array(all)) => self.alternatives += all.len(),
                    ("$ref", _) => self.references += 1,
                    _ => {}
                }
                self.count(value);
            }),
            _ => {}
        }
    }
}

/// A regular expression between slashes of Lark's notation.
fn of_slashes(regex: &str) -> String {
    let mut escaped = String::with_capacity(regex.len());
    let mut is_escaped = false;
    for letter in regex.chars() {
        if letter == '/' && !is_escaped {
            escaped.push('\\');
        }
        is_escaped = letter == '\\' && !is_escaped;
        escaped.push(letter);
    }
    if escaped.is_empty() { "(?:)".to_owned() } else { escaped }
}

fn is_deeper(value: &Value, levels: usize) -> bool {
    match value {
        _ if levels == 0 => true,
        Value::Array(values) => values.iter().any(|value| is_deeper(value, levels - 1)),
        Value::Object(entries) => entries.values().any(|value| is_deeper(value, levels - 1)),
        _ => false,
    }
}
