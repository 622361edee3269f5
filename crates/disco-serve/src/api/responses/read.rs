//! From requests for responses to chats.

use serde_json::{Map, Value, json};

use super::tools::{function, functions, joined};
use crate::api::{ApiError, Kind, Known, Object, Order, RESPONSE};

/// Fields that a response repeats, and their values if a request has none.
const REPEATED: [(&str, &str); 9] = [
    ("instructions", "null"),
    ("max_output_tokens", "null"),
    ("metadata", "{}"),
    ("parallel_tool_calls", "true"),
    ("reasoning", "null"),
    ("temperature", "null"),
    ("text", "{\"format\": {\"type\": \"text\"}}"),
    ("tool_choice", "\"auto\""),
    ("top_p", "null"),
];

/// A request for a response.
#[derive(Debug)]
pub(crate) struct Wanted {
    pub(crate) order: Order,
    /// The fields that the response repeats.
    pub(crate) repeated: Map<String, Value>,
}

impl Wanted {
    /// Tools of other types than functions and namespaces of functions are left out, as clients send them always.
    ///
    /// # Errors
    /// A field has a value that it can't have, or asks for something that is not supported.
    pub(crate) fn parse(object: Object, model: Known<'_>) -> Result<Self, ApiError> {
        let fields = &mut object.fields(&RESPONSE)?;
        // The other values are about tools that the server does not have, or hidden reasoning.
        if fields.list("include")?.iter().any(|included| included == "message.output_text.logprobs") {
            return Err(ApiError::param("include", "can't have logprobs here: use /v1/chat/completions"));
        }
        let mut repeated = Map::new();
        let mut messages = Vec::new();
        for (name, default) in REPEATED {
            let found = fields.value(name)?.unwrap_or_else(|| serde_json::from_str(default).unwrap_or_default());
            repeated.insert(name.to_owned(), found);
        }
        if let Some(text) = repeated["instructions"].as_str() {
            messages.push(json!({"role": "system", "content": text}));
        }
        match fields.value("input")?.unwrap_or_default() {
            Value::Array(items) => {
                for (index, item) in items.iter().enumerate() {
                    add(&mut messages, item, &format!("input[{index}]"))?;
                }
            }
            text => messages.push(json!({"role": "user", "content": text})),
        }
        let mut chat = Map::new();
        if let Some(verbosity) = repeated["text"].get("verbosity") {
            chat.insert("verbosity".into(), verbosity.clone());
        }
        chat.insert("messages".into(), merged(messages).into());
        for (name, chats) in [
            ("max_output_tokens", "max_tokens"),
            ("temperature", "temperature"),
            ("top_p", "top_p"),
            ("parallel_tool_calls", "parallel_tool_calls"),
        ] {
            chat.insert(chats.into(), repeated[name].clone());
        }
        if let Some(effort) = repeated["reasoning"].get("effort").filter(|effort| !effort.is_null()) {
            chat.insert("reasoning_effort".into(), effort.clone());
        }
        if let Some(format) = repeated["text"].get("format").filter(|format| !format.is_null()) {
            chat.insert("response_format".into(), response_format(format));
        }
        let tools = fields.list("tools")?;
        let functions = functions(&tools);
        repeated.insert("tools".into(), tools.into());
        chat.insert("tools".into(), functions.into());
        let choice = match &repeated["tool_choice"] {
            Value::Object(choice) if choice.get("type").is_some_and(|kind| kind == "function") => {
                function(&choice.clone().into())
            }
            Value::Object(choice) if choice.get("type").is_some_and(|kind| kind == "allowed_tools") => {
                let tools = choice.get("tools").and_then(Value::as_array).into_iter().flatten().map(function);
                let allowed = json!({"mode": choice.get("mode"), "tools": tools.collect::<Vec<_>>()});
                json!({"type": "allowed_tools", "allowed_tools": allowed})
            }
            choice => choice.clone(),
        };
        chat.insert("tool_choice".into(), choice);
        // What chats have beside these is used, or refused by name.
        for (name, value) in fields.rest() {
            chat.entry(name).or_insert(value);
        }
        Ok(Self { order: Order::parse(Kind::Chat, Object::new(chat), model).map_err(named)?, repeated })
    }
}

/// An error of a chat, with the name of the response's own field.
fn named(error: ApiError) -> ApiError {
    error.renamed(&[
        ("response_format.json_schema", "text.format"),
        ("response_format", "text.format"),
        ("reasoning_effort", "reasoning.effort"),
        ("max_tokens", "max_output_tokens"),
        ("messages", "input"),
    ])
}

/// A format as a chat has it: the schema is one level deeper.
fn response_format(format: &Value) -> Value {
    if format["type"] == "json_schema" { json!({"type": "json_schema", "json_schema": format}) } else { format.clone() }
}

/// The texts of a content.
fn text(content: &Value, name: &str) -> Result<String, ApiError> {
    const KINDS: [&str; 5] = ["input_text", "output_text", "reasoning_text", "summary_text", "text"];
    let part = |(index, part): (usize, &Value)| match (part["type"].as_str(), part["text"].as_str()) {
        (Some(kind), Some(text)) if KINDS.contains(&kind) => Ok(text.to_owned()),
        (Some("refusal"), _) => Ok(part["refusal"].as_str().unwrap_or_default().to_owned()),
        (kind, _) => {
            let kind = kind.unwrap_or_default();
            let why = format!("has the type {kind:?}: the model takes only text");
            Err(ApiError::param(format!("{name}[{index}]"), why))
        }
    };
    match content {
        Value::Null => Ok(String::new()),
        Value::String(text) => Ok(text.clone()),
        Value::Array(parts) => {
            parts.iter().enumerate().map(part).collect::<Result<Vec<_>, _>>().map(|texts| texts.join("\n"))
        }
        _ => Err(ApiError::param(name, "must be a string or a list of parts")),
    }
}

/// Adds the message that an item stands for.
fn add(messages: &mut Vec<Value>, item: &Value, name: &str) -> Result<(), ApiError> {
    let of = |key: &str| item[key].as_str().ok_or_else(|| ApiError::param(format!("{name}.{key}"), "must be a string"));
    messages.push(match item["type"].as_str().unwrap_or("message") {
        "message" => json!({"role": of("role")?, "content": text(&item["content"], &format!("{name}.content"))?}),
        "function_call" => {
            let name = joined(item["namespace"].as_str(), of("name")?);
            json!({"role": "assistant", "content": "", "tool_calls": [
                {"id": of("call_id")?, "type": "function", "function": {"name": name, "arguments": of("arguments")?}},
            ]})
        }
        "function_call_output" => {
            let output = text(&item["output"], &format!("{name}.output"))?;
            json!({"role": "tool", "tool_call_id": of("call_id")?, "content": output})
        }
        "reasoning" => {
            let reasoning = text(&item["content"], &format!("{name}.content"))?;
            if reasoning.is_empty() {
                return Ok(());
            }
            json!({"role": "assistant", "content": "", "reasoning_content": reasoning})
        }
        other => {
            let why = format!("is {other:?}; items can be messages, calls of functions, their outputs and reasoning");
            return Err(ApiError::param(format!("{name}.type"), why));
        }
    });
    Ok(())
}

/// One message for what an assistant has thought, said and called in a row, and one for all instructions in front.
fn merged(messages: Vec<Value>) -> Vec<Value> {
    let mut all: Vec<Value> = Vec::with_capacity(messages.len());
    for message in messages {
        let is_first = all.len() == 1 && all[0]["role"] == "system";
        let Some(last) = all.last_mut() else {
            all.push(message);
            continue;
        };
        if is_first && (message["role"] == "system" || message["role"] == "developer") {
            join(last, &message, "content", "\n\n");
        } else if last["role"] == "assistant" && message["role"] == "assistant" {
            join(last, &message, "content", "");
            join(last, &message, "reasoning_content", "");
            if let Some(calls) = message["tool_calls"].as_array() {
                match last["tool_calls"].as_array_mut() {
                    Some(all) => all.extend(calls.iter().cloned()),
                    None => last["tool_calls"] = message["tool_calls"].clone(),
                }
            }
        } else {
            all.push(message);
        }
    }
    all
}

/// Adds a text of a message to that of another one.
fn join(to: &mut Value, from: &Value, key: &str, separator: &str) {
    let Some(text) = from[key].as_str().filter(|text| !text.is_empty()) else { return };
    let joined = match to[key].as_str().filter(|text| !text.is_empty()) {
        Some(before) => format!("{before}{separator}{text}"),
        None => text.to_owned(),
    };
    to[key] = joined.into();
}
