//! Calls that are JSON objects.

use serde_json::{Map, Value};

use super::Tool;
use super::arguments::{Arguments, Head, Known};
use super::json::{Reach, Scan};
use super::reading::{MAX_NAME, Not};

/// Keys that a call can have before its arguments.
const KEYS: [&str; 5] = ["name", "arguments", "parameters", "type", "id"];

/// What is known of an object with `name` and `arguments` or `parameters`, of which a part has come.
#[derive(Debug, Default)]
pub(super) struct Object {
    /// The names that a call can have, if a text that is no call can have the same form.
    names: Option<Vec<String>>,
    /// How far the object is read, in bytes.
    read: usize,
    expected: Expected,
    key: String,
    name: Option<String>,
    arguments: Option<String>,
}

#[derive(Clone, Copy, Debug, Default)]
enum Expected {
    #[default]
    Open,
    Key,
    Colon,
    Value,
    /// The rest of a value that begins here.
    Rest(usize, Scan),
    Comma,
}

impl Object {
    /// An object that is a call only if it has the name of a tool.
    pub(super) fn of(tools: &[Tool]) -> Self {
        Self { names: Some(tools.iter().map(|tool| tool.name.clone()).collect()), ..Self::default() }
    }

    /// Goes on reading an object with which `text` begins, up to the arguments if the name comes before them.
    pub(super) fn read(&mut self, text: &str) -> Result<Head, Not> {
        loop {
            if let Expected::Rest(start, scan) = &mut self.expected {
                let start = *start;
                match scan.follow(&text[self.read..]) {
                    Reach::On => {
                        self.read = text.len();
                        return Err(Not::Yet);
                    }
                    Reach::Broken(_) => return Err(Not::Ever),
                    Reach::End(length) => self.read += length,
                }
                self.value(&text[start..self.read])?;
                continue;
            }
            let rest = text[self.read..].trim_start();
            self.read = text.len() - rest.len();
            let first = rest.chars().next().ok_or(Not::Yet)?;
            let (length, next) = match (self.expected, first) {
                (Expected::Open, '{') | (Expected::Comma, ',') => (1, Expected::Key),
                (Expected::Key, '"') => {
                    let length = self.key(rest)?;
                    (length, Expected::Colon)
                }
                (Expected::Colon, ':') => (1, Expected::Value),
                (Expected::Key | Expected::Comma, '}') => {
                    let name = self.name.take().ok_or(Not::Ever)?;
                    let arguments = Known::Are(self.arguments.take().unwrap_or_else(|| "{}".to_owned()));
                    return Ok(Head { name, length: self.read + 1, arguments });
                }
                (Expected::Value, '{') if self.has_arguments() && self.name.is_some() => {
                    let name = self.name.take().ok_or(Not::Ever)?;
                    let arguments = Known::Follow(Arguments::Json(Scan::default()));
                    return Ok(Head { name, length: self.read, arguments });
                }
                (Expected::Value, '{' | '[' | '"') => (0, Expected::Rest(self.read, Scan::default())),
                (Expected::Value, _) => {
                    let end = rest.find(|c: char| c.is_whitespace() || [',', '}', ']'].contains(&c));
                    let length = end.ok_or(if rest.len() <= MAX_NAME { Not::Yet } else { Not::Ever })?;
                    self.value(&rest[..length])?;
                    (length, Expected::Comma)
                }
                _ => return Err(Not::Ever),
            };
            self.read += length;
            self.expected = next;
        }
    }

    /// Takes a key. Returns its length.
    fn key(&mut self, text: &str) -> Result<usize, Not> {
        let length = match Scan::default().follow(text) {
            Reach::End(length) => length,
            Reach::On if text.len() <= MAX_NAME => return Err(Not::Yet),
            _ => return Err(Not::Ever),
        };
        self.key = serde_json::from_str(&text[..length]).map_err(|_| Not::Ever)?;
        if self.names.is_some() && !KEYS.contains(&self.key.as_str()) { Err(Not::Ever) } else { Ok(length) }
    }

    fn has_arguments(&self) -> bool {
        ["arguments", "parameters"].contains(&self.key.as_str())
    }

    /// Takes a whole value.
    fn value(&mut self, text: &str) -> Result<(), Not> {
        if self.key == "name" {
            let name = serde_json::from_str::<String>(text).map_err(|_| Not::Ever)?;
            if self.names.as_ref().is_some_and(|names| !names.contains(&name)) {
                return Err(Not::Ever);
            }
            self.name = Some(name);
        } else if self.has_arguments() {
            self.arguments = Some(arguments(text)?);
        }
        self.expected = Expected::Comma;
        Ok(())
    }
}

/// Arguments that have come as a whole. Some models write a text that is JSON.
fn arguments(text: &str) -> Result<String, Not> {
    match serde_json::from_str(text).map_err(|_| Not::Ever)? {
        Value::Null => Ok("{}".to_owned()),
        Value::String(text) if text.trim().is_empty() => Ok("{}".to_owned()),
        Value::String(text) if serde_json::from_str::<Map<String, Value>>(&text).is_ok() => Ok(text),
        arguments @ Value::Object(_) => Ok(arguments.to_string()),
        _ => Err(Not::Ever),
    }
}
