//! From the texts of calls to calls.

use serde_json::{Deserializer, Map, Value};

use super::form::{ARGS, CALL_ID, DEEPSEEK};
use super::{Call, Form, Tool};

impl Form {
    /// The calls between the marks of begin and end; `None` if the text is something else.
    pub(super) fn read(self, body: &str, tools: &[Tool]) -> Option<Vec<Call>> {
        let calls = match self {
            Self::Hermes | Self::Llama | Self::MistralList | Self::Granite => objects(body),
            Self::Functools => objects(&format!("[{body}")),
            Self::Elements => elements(body, tools),
            Self::Mistral => named(body, self.begin()),
            Self::DeepSeek | Self::DeepSeekPlain => deepseek(body, self == Self::DeepSeek),
        };
        calls.filter(|calls| !calls.is_empty())
    }
}

/// Objects with `name` and `arguments` or `parameters`, one after the other or in lists. Llama writes `;` between them.
fn objects(body: &str) -> Option<Vec<Call>> {
    let mut calls = Vec::new();
    let mut rest = body.trim();
    while !rest.is_empty() {
        let mut values = Deserializer::from_str(rest).into_iter::<Value>();
        match values.next()?.ok()? {
            Value::Array(all) => calls.extend(all.into_iter().map(object).collect::<Option<Vec<_>>>()?),
            value => calls.push(object(value)?),
        }
        rest = rest[values.byte_offset()..].trim_start_matches(|c: char| c.is_whitespace() || [';', ','].contains(&c));
    }
    Some(calls)
}

fn object(value: Value) -> Option<Call> {
    let Value::Object(mut call) = value else { return None };
    let Some(Value::String(name)) = call.remove("name") else { return None };
    let arguments = call.remove("arguments").or_else(|| call.remove("parameters"));
    Some(Call { name, arguments: arguments_text(arguments)? })
}

/// The arguments as a JSON text. Some models write a text that is one.
fn arguments_text(arguments: Option<Value>) -> Option<String> {
    match arguments {
        None | Some(Value::Null) => Some("{}".to_owned()),
        Some(Value::String(text)) if text.trim().is_empty() => Some("{}".to_owned()),
        Some(Value::String(text)) => serde_json::from_str::<Map<String, Value>>(&text).ok().map(|_| text),
        Some(arguments @ Value::Object(_)) => Some(arguments.to_string()),
        Some(_) => None,
    }
}

/// The JSON value at the begin of a text, and what follows.
fn value(text: &str) -> Option<(Value, &str)> {
    let mut values = Deserializer::from_str(text).into_iter::<Value>();
    let value = values.next()?.ok()?;
    Some((value, &text[values.byte_offset()..]))
}

/// `NAME[ARGS]{…}`, also with an id behind the name, and again behind the mark of the begin.
fn named(body: &str, begin: &str) -> Option<Vec<Call>> {
    let mut calls = Vec::new();
    let mut rest = body.trim();
    while !rest.is_empty() {
        let (name, arguments) = match rest.find(ARGS) {
            Some(place) => (&rest[..place], &rest[place + ARGS.len()..]),
            // Some tokenizers leave the mark out.
            None => rest.split_at(rest.find('{')?),
        };
        let name = name.split(CALL_ID).next()?.trim();
        let (arguments, behind) = value(arguments)?;
        calls.push(Call { name: name.to_owned(), arguments: arguments_text(Some(arguments))? });
        rest = behind.trim();
        rest = rest.strip_prefix(begin).unwrap_or(rest);
    }
    Some(calls)
}

fn deepseek(body: &str, has_fence: bool) -> Option<Vec<Call>> {
    let [_, begin, separator, end, _] = DEEPSEEK;
    let mut calls = Vec::new();
    let mut rest = body.trim();
    while !rest.is_empty() {
        let call = rest.strip_prefix(begin)?;
        let (name, arguments) = if has_fence {
            let (_, call) = call.split_once(separator)?;
            call.split_once("```json")?
        } else {
            call.split_once(separator)?
        };
        let (arguments, behind) = value(arguments.trim_start())?;
        calls.push(Call { name: name.trim().to_owned(), arguments: arguments_text(Some(arguments))? });
        let behind = behind.trim_start();
        let behind = behind.strip_prefix("```").unwrap_or(behind);
        rest = behind.trim_start().strip_prefix(end)?.trim();
    }
    Some(calls)
}

/// `<function=NAME><parameter=KEY>VALUE</parameter></function>`. A value is a text if the schema says so or it is no JSON.
fn elements(body: &str, tools: &[Tool]) -> Option<Vec<Call>> {
    let mut calls = Vec::new();
    let mut rest = body.trim();
    while !rest.is_empty() {
        let (name, mut inner) = rest.strip_prefix("<function=")?.split_once('>')?;
        let properties = tools.iter().find(|tool| tool.name == name).map(|tool| &tool.parameters["properties"]);
        let mut arguments = Map::new();
        loop {
            inner = inner.trim_start();
            if let Some(behind) = inner.strip_prefix("</function>") {
                rest = behind.trim();
                break;
            }
            let (key, behind) = inner.strip_prefix("<parameter=")?.split_once('>')?;
            let (value, behind) = behind.split_once("</parameter>")?;
            let value = value.strip_prefix('\n').unwrap_or(value);
            let value = value.strip_suffix('\n').unwrap_or(value);
            let kind = properties.map_or(&Value::Null, |properties| &properties[key]["type"]);
            let json = if kind == "string" { None } else { serde_json::from_str(value.trim()).ok() };
            arguments.insert(key.to_owned(), json.unwrap_or_else(|| value.into()));
            inner = behind;
        }
        calls.push(Call { name: name.to_owned(), arguments: Value::Object(arguments).to_string() });
    }
    Some(calls)
}
