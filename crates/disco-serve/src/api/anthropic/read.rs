//! From Anthropic's requests to chats.

use serde_json::{Map, Value, json};

use super::edits::edit;
use crate::api::{ApiError, COUNTED_MESSAGE, Fields, Kind, Known, MESSAGE, Object, Order};

/// Fields that are those of chats by another name.
const OF_CHATS: [(&str, &str); 7] = [
    ("model", "model"),
    ("max_tokens", "max_tokens"),
    ("stop_sequences", "stop"),
    ("stream", "stream"),
    ("temperature", "temperature"),
    ("top_p", "top_p"),
    ("top_k", "top_k"),
];
/// What a line begins with that Claude Code changes for each request, so that no prefix would be found in the cache.
const BILLING: &str = "x-anthropic-billing-header:";

/// A request for a message.
#[derive(Debug)]
pub(crate) struct Message {
    pub(crate) order: Order,
    /// Whether the client wants what the model thinks.
    pub(crate) shows_thinking: bool,
}

impl Message {
    /// # Errors
    /// A field has a value that it can't have, or asks for something that is not supported. A message needs `max_tokens`, unless it is
    /// only counted.
    pub(crate) fn parse(object: Object, is_counted: bool, model: Known<'_>) -> Result<Self, ApiError> {
        let fields = &mut object.fields(if is_counted { &COUNTED_MESSAGE } else { &MESSAGE })?;
        let mut chat = Map::new();
        let mut messages = Vec::new();
        let system = fields.value("system")?.map(|system| texts(&system, "system")).transpose()?;
        let system: Vec<_> = system.into_iter().flatten().filter(|text| !text.starts_with(BILLING)).collect();
        if !system.is_empty() {
            messages.push(json!({"role": "system", "content": system.join("\n")}));
        }
        let given = fields.list("messages")?;
        for (index, message) in given.iter().enumerate() {
            add(&mut messages, message, &format!("messages[{index}]"))?;
        }
        edit(&mut messages, fields)?;
        chat.insert("messages".into(), messages.into());
        for (name, chats) in OF_CHATS {
            chat.extend(fields.value(name)?.map(|value| (chats.to_owned(), value)));
        }
        let tools = fields.list("tools")?;
        let tools = tools.iter().enumerate().map(|(index, tool)| function(tool, index));
        chat.insert("tools".into(), tools.collect::<Result<_, _>>()?);
        choose(fields, &mut chat)?;
        // The beginning of the answer.
        let continues = given.last().is_some_and(|message| message["role"] == "assistant");
        chat.insert("continue_final_message".into(), continues.into());
        if let Some(format) = format(fields)? {
            chat.insert("response_format".into(), json!({"type": "json_schema", "json_schema": format}));
        }
        let thinking = fields.object("thinking")?.unwrap_or_default();
        let shows_thinking = thinking.get("type").is_some_and(|kind| kind == "enabled" || kind == "adaptive");
        Ok(Self { order: Order::parse(Kind::Chat, Object::new(chat), model).map_err(named)?, shows_thinking })
    }
}

/// An error of a chat, with the name of the message's own field.
fn named(error: ApiError) -> ApiError {
    error.renamed(&[("response_format.json_schema", "output_config.format"), ("stop", "stop_sequences")])
}

/// The schema of the answer: `output_config.format`, or `output_format` of older clients.
fn format(fields: &mut Fields) -> Result<Option<Value>, ApiError> {
    let mut config = fields.object("output_config")?.unwrap_or_default();
    let format = config.remove("format").filter(|format| !format.is_null()).or(fields.value("output_format")?);
    // A hint.
    config.remove("effort");
    if let Some((name, _)) = config.into_iter().find(|(_, value)| !value.is_null()) {
        return Err(ApiError::param(format!("output_config.{name}"), "is not supported by this server"));
    }
    match format {
        Some(format) if format["type"] != "json_schema" => {
            Err(ApiError::param("output_config.format.type", "must be \"json_schema\""))
        }
        format => Ok(format),
    }
}

/// The text of a block. The error for another kind of block has its path as Anthropic's errors have it, in which Claude Code finds the images
/// that it then leaves out.
fn text(block: &Value, name: String) -> Result<String, ApiError> {
    match (block["type"].as_str(), block["text"].as_str()) {
        (Some("text"), Some(text)) => Ok(text.to_owned()),
        (Some(kind), _) if kind != "text" => {
            Err(ApiError::param(format!("{name}.{kind}"), "is not supported: the model takes only text"))
        }
        _ => Err(ApiError::param(name, "must have `type` and `text`")),
    }
}

/// The texts of a content: a text, or blocks of texts.
fn texts(content: &Value, name: &str) -> Result<Vec<String>, ApiError> {
    match content {
        Value::String(text) => Ok(vec![text.clone()]),
        Value::Array(blocks) => {
            blocks.iter().enumerate().map(|(index, block)| text(block, format!("{name}[{index}]"))).collect()
        }
        _ => Err(ApiError::param(name, "must be a string or a list of blocks")),
    }
}

/// Adds the messages of a chat that a message stands for: results of tools are messages of their own.
fn add(messages: &mut Vec<Value>, message: &Value, name: &str) -> Result<(), ApiError> {
    let role = message["role"].as_str().filter(|role| ["user", "assistant", "system"].contains(role));
    let role = role.ok_or_else(|| ApiError::param(format!("{name}.role"), "must be \"user\" or \"assistant\""))?;
    let Value::Array(blocks) = &message["content"] else {
        let content = texts(&message["content"], &format!("{name}.content"))?.join("\n");
        messages.push(json!({"role": role, "content": content}));
        return Ok(());
    };
    let (mut said, mut calls, mut reasoning) = (Vec::new(), Vec::new(), String::new());
    for (index, block) in blocks.iter().enumerate() {
        let name = format!("{name}.content[{index}]");
        let field = |key: &str| {
            let text = block[key].as_str();
            text.ok_or_else(|| ApiError::param(format!("{name}.{key}"), "must be a string"))
        };
        match block["type"].as_str() {
            Some("tool_use") => calls.push(json!({"id": field("id")?, "type": "function", "function": {
                "name": field("name")?, "arguments": block["input"].to_string(),
            }})),
            Some("tool_result") => {
                let content = match &block["content"] {
                    Value::Null => String::new(),
                    content => texts(content, &format!("{name}.tool_result.content"))?.join("\n"),
                };
                messages.push(json!({"role": "tool", "tool_call_id": field("tool_use_id")?, "content": content}));
            }
            Some("thinking") => reasoning += field("thinking")?,
            Some("redacted_thinking") => {}
            _ => said.push(text(block, name)?),
        }
    }
    if said.is_empty() && calls.is_empty() && role != "assistant" {
        return Ok(());
    }
    let mut message = json!({"role": role, "content": said.join("\n")});
    if !calls.is_empty() {
        message["tool_calls"] = calls.into();
    }
    if !reasoning.is_empty() {
        message["reasoning_content"] = reasoning.into();
    }
    messages.push(message);
    Ok(())
}

/// A tool as a chat has it.
fn function(tool: &Value, index: usize) -> Result<Value, ApiError> {
    if let Some(kind) = tool["type"].as_str().filter(|kind| *kind != "custom") {
        let why = format!("is {kind:?}; the server has tools of the type \"custom\" only");
        return Err(ApiError::param(format!("tools[{index}].type"), why));
    }
    let mut function = json!({"name": tool["name"], "parameters": tool["input_schema"]});
    for name in ["description", "strict"] {
        if !tool[name].is_null() {
            function[name] = tool[name].clone();
        }
    }
    Ok(json!({"type": "function", "function": function}))
}

fn choose(fields: &mut Fields, chat: &mut Map<String, Value>) -> Result<(), ApiError> {
    let Some(choice) = fields.object("tool_choice")? else { return Ok(()) };
    let kind = choice.get("type").and_then(Value::as_str);
    let chosen = match (kind, choice.get("name")) {
        (Some("auto"), _) => json!("auto"),
        (Some("any"), _) => json!("required"),
        (Some("none"), _) => json!("none"),
        (Some("tool"), Some(name)) => json!({"type": "function", "function": {"name": name}}),
        _ => {
            return Err(ApiError::param(
                "tool_choice.type",
                "must be \"auto\", \"any\", \"none\", or \"tool\" with a name",
            ));
        }
    };
    chat.insert("tool_choice".into(), chosen);
    if choice.get("disable_parallel_tool_use") == Some(&Value::Bool(true)) {
        chat.insert("parallel_tool_calls".into(), false.into());
    }
    Ok(())
}
