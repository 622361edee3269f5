//! Gemma's notation of arguments: `{KEY:<|"|>TEXT<|"|>,KEY:1,KEY:{…},KEY:[…]}`.
//!
//! A text has no escapes, so it can't have the mark `<|"|>`, and a key no `:`.

use serde_json::Value;

use super::json::escaped;
use super::reading::{MAX_NAME, Not, Taken, past};
use crate::text::undecided;

/// Begins and ends a text.
pub(super) const QUOTE: &str = "<|\"|>";

/// Turns arguments into JSON while they grow.
#[derive(Debug, Default)]
pub(super) struct Pairs {
    /// The objects, as true, and the arrays that are open.
    open: Vec<bool>,
    expected: Expected,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Expected {
    #[default]
    Value,
    Key,
    /// The rest of a text that is a value, or a key.
    Text {
        is_key: bool,
    },
    Colon,
    /// What follows a value.
    Comma,
}

impl Pairs {
    pub(super) fn take(&mut self, text: &str) -> Taken {
        let mut taken = Taken::default();
        loop {
            match self.step(&text[taken.length..], &mut taken.json) {
                Ok(length) => taken.length += length,
                Err(Not::Yet) => return taken,
                Err(Not::Ever) => taken.is_end = true,
            }
            if taken.is_end || (self.open.is_empty() && self.expected == Expected::Comma) {
                taken.is_end = true;
                return taken;
            }
        }
    }

    /// Adds what comes next. Returns its length.
    fn step(&mut self, text: &str, json: &mut String) -> Result<usize, Not> {
        if let Expected::Text { is_key } = self.expected {
            let (end, is_end) = match text.find(QUOTE) {
                Some(place) => (place, true),
                None => (undecided(text, QUOTE), false),
            };
            *json += &escaped(&text[..end]);
            if is_end {
                json.push('"');
                self.expected = if is_key { Expected::Colon } else { Expected::Comma };
                return Ok(end + QUOTE.len());
            }
            return if end == 0 { Err(Not::Yet) } else { Ok(end) };
        }
        let rest = text.trim_start();
        let first = rest.chars().next().ok_or(Not::Yet)?;
        let space = text.len() - rest.len();
        let is_object = self.open.last().copied();
        let length = match (self.expected, first) {
            (Expected::Value, '{') => self.open(true, json),
            (Expected::Value, '[') => self.open(false, json),
            (Expected::Key, '}') => self.close('}', json),
            (Expected::Value | Expected::Comma, ']') if is_object == Some(false) => self.close(']', json),
            (Expected::Comma, '}') if is_object == Some(true) => self.close('}', json),
            (Expected::Comma, ',') => {
                json.push(',');
                self.expected = if is_object == Some(true) { Expected::Key } else { Expected::Value };
                1
            }
            (Expected::Colon, ':') => {
                json.push(':');
                self.expected = Expected::Value;
                1
            }
            (Expected::Key | Expected::Value, '<') => {
                past(rest, QUOTE)?;
                json.push('"');
                self.expected = Expected::Text { is_key: self.expected == Expected::Key };
                QUOTE.len()
            }
            (Expected::Key, _) => {
                let end = rest.find(':').ok_or(if rest.len() <= MAX_NAME { Not::Yet } else { Not::Ever })?;
                *json += &Value::from(rest[..end].trim()).to_string();
                self.expected = Expected::Colon;
                end
            }
            (Expected::Value, _) if self.open.is_empty() => return Err(Not::Ever),
            (Expected::Value, _) => {
                let end = rest.find([',', '}', ']', '<']);
                let end = end.ok_or(if rest.len() <= MAX_NAME { Not::Yet } else { Not::Ever })?;
                *json += &plain(rest[..end].trim());
                self.expected = Expected::Comma;
                end
            }
            _ => return Err(Not::Ever),
        };
        Ok(space + length)
    }

    fn open(&mut self, is_object: bool, json: &mut String) -> usize {
        json.push(if is_object { '{' } else { '[' });
        self.open.push(is_object);
        self.expected = if is_object { Expected::Key } else { Expected::Value };
        1
    }

    fn close(&mut self, bracket: char, json: &mut String) -> usize {
        json.push(bracket);
        self.open.pop();
        self.expected = Expected::Comma;
        1
    }
}

/// JSON of a value that is no text, as JSON or Python write it. Anything else is a text.
fn plain(text: &str) -> String {
    match text {
        "None" | "none" => "null".to_owned(),
        "True" => "true".to_owned(),
        "False" => "false".to_owned(),
        json if serde_json::from_str::<Value>(json).is_ok() => json.to_owned(),
        other => Value::from(other).to_string(),
    }
}
