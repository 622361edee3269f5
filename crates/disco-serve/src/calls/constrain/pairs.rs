//! Arguments in Gemma's notation, by their schemas.

use serde_json::{Value, json};

use super::{Rules, excluding, literal};
use crate::calls::Tool;
use crate::calls::pairs::QUOTE;
use crate::grammar::{MAX_BYTES, bounded};

/// The most levels of a schema.
const MAX_LEVELS: usize = 16;
/// What a schema can have without a meaning for the text.
const NOTES: [&str; 6] = ["title", "description", "default", "examples", "$defs", "definitions"];

/// Any value.
const ANY: &str = "any_object: \"{\" (any_pair (\",\" any_pair)*)? \"}\"\n\
    any_pair: /[A-Za-z0-9_.-]+/ \":\" any_value\n\
    any_value: any_object | \"[\" (any_value (\",\" any_value)*)? \"]\" | any_text | any_plain\n\
    any_plain: %json {\"type\": [\"number\", \"boolean\", \"null\"]}\n";

impl Rules<'_> {
    /// The rule of a tool's arguments.
    pub(super) fn pairs(&mut self, number: usize, tool: &Tool) -> Result<(), String> {
        if number == 0 {
            let quote = (self.mark)(QUOTE);
            self.text += ANY;
            self.text += &match (self.special)(QUOTE) {
                Some(_) => format!("any_text: {quote} ANY? {quote}\nANY: /(?s:.+)/\n"),
                None => format!("any_text: {quote} any_rest\nany_rest[lazy]: /(?s:.*)/ {quote}\n"),
            };
        }
        let rule = &format!("arguments_{number}");
        match self.tools.schema(tool).cloned() {
            Some(schema) => self.value(rule, &schema, &schema, 0),
            None => {
                self.add(rule, "any_object");
                Ok(())
            }
        }
    }

    /// The rule of a value.
    fn value(&mut self, rule: &str, schema: &Value, root: &Value, level: usize) -> Result<(), String> {
        if level > MAX_LEVELS || self.text.len() > MAX_BYTES {
            return Err(format!(
                "has more than {MAX_LEVELS} levels, or makes a grammar of more than {MAX_BYTES} bytes"
            ));
        }
        let Some(object) = schema.as_object().filter(|object| object.keys().any(|key| !NOTES.contains(&key.as_str())))
        else {
            self.add(rule, "any_value");
            return Ok(());
        };
        let known = |names: &[&str]| {
            let unknown = object.keys().find(|key| !names.contains(&key.as_str()) && !NOTES.contains(&key.as_str()));
            let why = |key| format!("has `{key}`, to which calls of this model can't be held");
            unknown.map_or(Ok(()), |key| Err(why(key)))
        };
        if let Some(reference) = object.get("$ref").and_then(Value::as_str) {
            let found = reference.strip_prefix('#').and_then(|pointer| root.pointer(pointer));
            let found = found.ok_or_else(|| format!("has the reference {reference:?}, which leads nowhere"))?;
            return self.value(rule, found, root, level + 1);
        }
        if let Some(choices) =
            object.get("const").map(|only| vec![only]).or_else(|| Some(schema["enum"].as_array()?.iter().collect()))
        {
            let choices: Vec<_> = choices.into_iter().map(|choice| self.written(choice)).collect();
            self.add(rule, &choices.join(" | "));
            return Ok(());
        }
        let types = schema["type"].as_array().map(|types| {
            let of = |kind: &Value| {
                let mut one = object.clone();
                one.insert("type".to_owned(), kind.clone());
                Value::Object(one)
            };
            types.iter().map(of).collect::<Vec<_>>()
        });
        let several = types.or_else(|| schema["anyOf"].as_array().or(schema["oneOf"].as_array()).cloned());
        if let Some(several) = several {
            if schema.get("type").is_none() {
                known(&["anyOf", "oneOf"])?;
            }
            let mut all = Vec::new();
            for (number, one) in several.iter().enumerate() {
                let name = format!("{rule}_{number}");
                self.value(&name, one, root, level + 1)?;
                all.push(name);
            }
            self.add(rule, &all.join(" | "));
            return Ok(());
        }
        match schema["type"].as_str() {
            Some("string") => {
                known(&["type", "minLength", "maxLength"])?;
                let text = self.text(rule, schema);
                self.add(rule, &text);
            }
            Some("integer" | "number" | "boolean" | "null") => {
                self.add(rule, &format!("%json {}", bounded(schema.clone())?));
            }
            Some("array") => {
                known(&["type", "items", "minItems", "maxItems"])?;
                self.value(&format!("{rule}_item"), &schema["items"], root, level + 1)?;
                let least = schema["minItems"].as_u64().unwrap_or(0);
                let most = schema["maxItems"].as_u64();
                let more = most.map_or_else(String::new, |most| most.saturating_sub(1).to_string());
                let items = format!("{rule}_item (\",\" {rule}_item){{{},{more}}}", least.saturating_sub(1));
                let items = match (least, most) {
                    (_, Some(0)) => String::new(),
                    (0, _) => format!("({items})?"),
                    _ => items,
                };
                self.add(rule, &format!("\"[\" {items} \"]\""));
            }
            Some("object") => {
                known(&["type", "properties", "required", "additionalProperties"])?;
                self.object(rule, schema, root, level)?;
            }
            kind => return Err(format!("has the type {}, to which calls of this model can't be held", json!(kind))),
        }
        Ok(())
    }

    /// A text of the lengths that a schema allows.
    fn text(&mut self, rule: &str, schema: &Value) -> String {
        let quote = (self.mark)(QUOTE);
        let (least, most) = (schema["minLength"].as_u64(), schema["maxLength"].as_u64());
        if least.is_none() && most.is_none() {
            return "any_text".to_owned();
        }
        let terminal = rule.to_uppercase();
        let least = least.unwrap_or(0);
        let text = |least: u64| {
            let most = most.map_or_else(String::new, |most| most.to_string());
            format!("/(?s:.){{{least},{most}}}/")
        };
        if (self.special)(QUOTE).is_some() {
            if most == Some(0) {
                return format!("{quote} {quote}");
            }
            // No terminal can be empty.
            self.add(&terminal, &text(least.max(1)));
            return format!("{quote} {terminal}{} {quote}", if least == 0 { "?" } else { "" });
        }
        // One terminal: the first one of two would also take the begin of the mark.
        let text = text(least);
        self.add(&terminal, &format!("({}) {quote}", excluding(&text, QUOTE, self.special)));
        format!("{quote} {terminal}")
    }

    /// An object with the properties of its schema, in their order.
    fn object(&mut self, rule: &str, schema: &Value, root: &Value, level: usize) -> Result<(), String> {
        let properties = schema["properties"].as_object().filter(|properties| !properties.is_empty());
        let has = |key: &Value| key.as_str().is_some_and(|key| properties.is_some_and(|all| all.contains_key(key)));
        if let Some(key) = schema["required"].as_array().into_iter().flatten().find(|key| !has(key)) {
            return Err(format!("requires {key}, which is none of its properties"));
        }
        if schema["additionalProperties"].is_object() {
            return Err("has a schema of additional properties, to which calls of this model can't be held".to_owned());
        }
        let Some(properties) = properties else {
            let is_closed = schema["additionalProperties"] == false || schema.get("properties").is_some();
            self.add(rule, if is_closed { "\"{\" \"}\"" } else { "any_object" });
            return Ok(());
        };
        // The rest of the properties from each one on, as the first ones and behind others.
        let (mut first, mut later) = ("\"\"".to_owned(), "\"\"".to_owned());
        for (place, (key, value)) in properties.iter().enumerate().rev() {
            let name = format!("{rule}_{place}");
            self.value(&name, value, root, level + 1)?;
            let pair = format!("{} {name}", literal(&format!("{key}:")));
            let is_required = schema["required"].as_array().is_some_and(|all| all.iter().any(|it| it == key));
            self.add(&format!("{name}_later"), &later);
            let (mut next_first, mut next_later) =
                (format!("{pair} {name}_later"), format!("\",\" {pair} {name}_later"));
            if !is_required {
                self.add(&format!("{name}_first"), &first);
                next_first += &format!(" | {name}_first");
                next_later += &format!(" | {name}_later");
            }
            (first, later) = (next_first, next_later);
        }
        self.add(&format!("{rule}_all"), &first);
        self.add(rule, &format!("\"{{\" {rule}_all \"}}\""));
        Ok(())
    }

    /// One value.
    fn written(&self, value: &Value) -> String {
        let quote = (self.mark)(QUOTE);
        match value {
            Value::String(text) => format!("{quote} {} {quote}", literal(text)),
            Value::Array(all) => {
                let all: Vec<_> = all.iter().map(|value| self.written(value)).collect();
                format!("\"[\" {} \"]\"", all.join(" \",\" "))
            }
            Value::Object(all) => {
                let all =
                    all.iter().map(|(key, value)| format!("{} {}", literal(&format!("{key}:")), self.written(value)));
                format!("\"{{\" {} \"}}\"", all.collect::<Vec<_>>().join(" \",\" "))
            }
            plain => literal(&plain.to_string()),
        }
    }
}
