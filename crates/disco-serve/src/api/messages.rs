//! The messages of a chat.

use disco_models::text::Chat;
use serde_json::{Map, Value, json};

use super::tools::tools_of;
use super::{ApiError, Fields};
use crate::calls::Tools;

/// The chat of the fields `messages`, `add_generation_prompt`, `chat_template_kwargs`, `reasoning_effort` and those of tools, and the
/// tools that the model can call.
///
/// # Errors
/// A message is something else than texts of a role and calls of tools.
pub(crate) fn chat_of(fields: &mut Fields) -> Result<(Chat, Option<Tools>), ApiError> {
    const NAME: &str = "messages";
    let messages = fields.objects(NAME)?.into_iter().enumerate().map(|(index, message)| {
        let name = format!("{NAME}[{index}]");
        let mut message = flat(message, &name)?;
        // Templates ask whether a message has this key.
        if message.get("tool_calls").is_some_and(|calls| calls.is_null() || *calls == json!([])) {
            message.remove("tool_calls");
        }
        parse_arguments(&mut message);
        // Templates know one of the two names that servers have for it.
        if let Some(reasoning) = message.get("reasoning").filter(|it| it.is_string()).cloned() {
            message.entry("reasoning_content").or_insert(reasoning);
        }
        // That of gpt-oss has a third name, for thoughts before a call, beside which there can be no text.
        if let Some(reasoning) = message.get("reasoning_content").filter(|it| it.is_string()).cloned()
            && message.contains_key("tool_calls")
            && message["content"] == ""
        {
            message.entry("thinking").or_insert(reasoning);
        }
        Ok::<_, ApiError>(Value::Object(message))
    });
    let mut chat = Chat::new(messages.collect::<Result<_, _>>()?);
    let adds = fields.bool("add_generation_prompt")?;
    chat.continues = fields.bool("continue_final_message")?.unwrap_or(false);
    if chat.continues && adds == Some(true) {
        return Err(ApiError::param("continue_final_message", "can't hold with `add_generation_prompt`"));
    }
    chat.add_generation_prompt = adds.unwrap_or(true);
    chat.variables = fields.object("chat_template_kwargs")?.unwrap_or_default();
    // A template without this variable refuses it.
    const EFFORT: &str = "reasoning_effort";
    if let Some(effort) = fields.text(EFFORT)? {
        chat.variables.entry(EFFORT).or_insert_with(|| effort.into());
    }
    let (tools, listed) = tools_of(fields)?.unzip();
    chat.tools = listed;
    Ok((chat, tools))
}

/// A message whose content is one text: templates do not know the parts of OpenAI's messages.
fn flat(mut message: Map<String, Value>, name: &str) -> Result<Map<String, Value>, ApiError> {
    if !message.get("role").is_some_and(Value::is_string) {
        return Err(ApiError::param(format!("{name}.role"), "must be a string"));
    }
    let content = match message.get_mut("content").map(Value::take) {
        Some(Value::String(text)) => text,
        // What an assistant says beside calls of tools.
        None | Some(Value::Null) if message["role"] == "assistant" => String::new(),
        Some(Value::Array(parts)) => {
            let texts = parts.iter().enumerate().map(|(index, part)| match (&part["type"], part["text"].as_str()) {
                (Value::String(kind), Some(text)) if kind == "text" => Ok(text),
                (Value::String(kind), _) if kind != "text" => {
                    let why = format!("has the type {kind:?}: the model takes only text");
                    Err(ApiError::param(format!("{name}.content[{index}]"), why))
                }
                _ => Err(ApiError::param(format!("{name}.content[{index}]"), "must have `type` and `text`")),
            });
            texts.collect::<Result<Vec<_>, _>>()?.join("\n")
        }
        _ => return Err(ApiError::param(format!("{name}.content"), "must be a string or a list of parts")),
    };
    message.insert("content".into(), Value::String(content));
    Ok(message)
}

/// Reads the arguments of calls that an assistant has made: OpenAI's messages have them as JSON texts, and templates as
/// objects. No text is no arguments, and a text that is no JSON, such as a cut one, is an argument itself.
fn parse_arguments(message: &mut Map<String, Value>) {
    let calls = message.get_mut("tool_calls").and_then(Value::as_array_mut).into_iter().flatten();
    for call in calls {
        let Some(function) = call.get_mut("function").and_then(Value::as_object_mut) else { continue };
        let arguments = function.entry("arguments").or_insert(Value::Null);
        match arguments {
            Value::Null => *arguments = Map::new().into(),
            Value::String(text) if text.trim().is_empty() => *arguments = Map::new().into(),
            Value::String(text) => {
                *arguments = serde_json::from_str(text).unwrap_or_else(|_| json!({"arguments": text}));
            }
            _ => {}
        }
    }
}
