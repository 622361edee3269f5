//! The fields of tools that the model can call.

use serde_json::{Map, Value, json};

use super::{ApiError, Fields};
use crate::calls::{Choice, Tool, Tools};

/// The most bytes of a tool's name, those of Anthropic.
const MAX_NAME: usize = 128;

/// Takes the fields `tools`, `tool_choice` and `parallel_tool_calls`. Returns the tools that can be called, and all as the chat
/// template gets them; `None`: the chat goes without tools.
///
/// # Errors
/// A field is malformed, or asks for a tool that is no function.
pub(crate) fn tools_of(fields: &mut Fields) -> Result<Option<(Tools, Vec<Value>)>, ApiError> {
    let listed = fields.list("tools")?;
    let choice = fields.value("tool_choice")?;
    let parallel = fields.bool("parallel_tool_calls")?.unwrap_or(true);
    let mut all = Vec::with_capacity(listed.len());
    for (index, tool) in listed.iter().enumerate() {
        all.push(tool_of(tool, &format!("tools[{index}]"))?);
    }
    let (mode, allowed) = choice_of(choice.as_ref())?;
    let Some(mode) = mode else { return Ok(None) };
    if all.is_empty() {
        return match mode {
            Choice::Auto => Ok(None),
            _ => Err(ApiError::param("tool_choice", "asks for a call, but there are no `tools`")),
        };
    }
    let unknown = |name: &String| !all.iter().any(|tool| tool.name == *name);
    let named = match &mode {
        Choice::Named(name) => Some(name),
        _ => None,
    };
    if let Some(name) = named.into_iter().chain(allowed.iter().flatten()).find(|name| unknown(name)) {
        return Err(ApiError::param("tool_choice", format!("names {name:?}, which is not one of the `tools`")));
    }
    if let Some(allowed) = allowed {
        all.retain(|tool| allowed.contains(&tool.name));
    }
    let is_restricted = all.len() < listed.len();
    Ok(Some((Tools { all, choice: mode, parallel, is_restricted }, listed)))
}

fn tool_of(tool: &Value, name: &str) -> Result<Tool, ApiError> {
    if tool["type"] != "function" {
        let why = match tool["type"].as_str() {
            Some(kind) => format!("is {kind:?}; the server has tools of the type \"function\" only"),
            None => "must be \"function\"".to_owned(),
        };
        return Err(ApiError::param(format!("{name}.type"), why));
    }
    let function = &tool["function"];
    let is_letter = |byte: u8| byte.is_ascii_alphanumeric() || b"_-.".contains(&byte);
    let known = function["name"].as_str().filter(|it| (1..=MAX_NAME).contains(&it.len()) && it.bytes().all(is_letter));
    let Some(known) = known else {
        let why = format!("must have 1 to {MAX_NAME} letters, digits and the characters `_`, `-` and `.`");
        return Err(ApiError::param(format!("{name}.function.name"), why));
    };
    let parameters = match &function["parameters"] {
        Value::Null => json!({"type": "object", "properties": {}}),
        Value::Object(schema) if schema.is_empty() => json!({"type": "object", "properties": {}}),
        schema @ Value::Object(_) => schema.clone(),
        _ => return Err(ApiError::param(format!("{name}.function.parameters"), "must be an object")),
    };
    let is_strict = match &function["strict"] {
        Value::Null => false,
        Value::Bool(is_strict) => *is_strict,
        _ => return Err(ApiError::param(format!("{name}.function.strict"), "must be a boolean")),
    };
    Ok(Tool { name: known.to_owned(), parameters, is_strict })
}

/// The mode of a choice; `None`: no calls. And the tools that it allows, if not all.
fn choice_of(choice: Option<&Value>) -> Result<(Option<Choice>, Option<Vec<String>>), ApiError> {
    const NAME: &str = "tool_choice";
    let named = |object: &Map<String, Value>| object.get("function")?["name"].as_str().map(str::to_owned);
    let mode = |mode: &Value| match mode.as_str() {
        Some("none") => Some(None),
        Some("auto") => Some(Some(Choice::Auto)),
        Some("required") => Some(Some(Choice::Required)),
        _ => None,
    };
    let wrong = || {
        let why =
            "must be \"none\", \"auto\", \"required\", or an object of the type \"function\" or \"allowed_tools\"";
        ApiError::param(NAME, why)
    };
    match choice {
        None => Ok((Some(Choice::Auto), None)),
        Some(Value::Object(choice)) if choice.get("type").is_some_and(|kind| kind == "function") => {
            let name = named(choice).ok_or_else(|| ApiError::param("tool_choice.function.name", "is missing"))?;
            Ok((Some(Choice::Named(name)), None))
        }
        Some(Value::Object(choice)) if choice.get("type").is_some_and(|kind| kind == "allowed_tools") => {
            let allowed = &choice.get("allowed_tools").unwrap_or(&Value::Null);
            let tools = allowed["tools"].as_array().ok_or_else(wrong)?;
            let names = tools.iter().map(|tool| named(tool.as_object()?)).collect::<Option<Vec<_>>>();
            let names = names.filter(|names| !names.is_empty()).ok_or_else(wrong)?;
            Ok((mode(&allowed["mode"]).ok_or_else(wrong)?, Some(names)))
        }
        Some(choice) => Ok((mode(choice).ok_or_else(wrong)?, None)),
    }
}
