//! Edits of earlier messages that a request asks for (`context_management`).

use serde_json::{Value, json};

use crate::api::{ApiError, Fields};

const PARAM: &str = "context_management";

/// Takes the field `context_management`, and leaves out what it clears of the messages of a chat.
///
/// # Errors
/// The field asks for another edit than to clear thinking.
pub(super) fn edit(messages: &mut [Value], fields: &mut Fields) -> Result<(), ApiError> {
    let mut management = fields.object(PARAM)?.unwrap_or_default();
    let edits = management.remove("edits").unwrap_or_default();
    if let Some((name, _)) = management.into_iter().find(|(_, value)| !value.is_null()) {
        return Err(ApiError::param(format!("{PARAM}.{name}"), "is not supported by this server"));
    }
    let edits = match &edits {
        Value::Null => &[],
        Value::Array(edits) => edits.as_slice(),
        _ => return Err(ApiError::param(format!("{PARAM}.edits"), "must be a list")),
    };
    for (index, edit) in edits.iter().enumerate() {
        let name = format!("{PARAM}.edits[{index}]");
        if edit["type"] != "clear_thinking_20251015" {
            let why = "is not supported by this server, which has edits of the type \"clear_thinking_20251015\" only";
            return Err(ApiError::param(format!("{name}.type"), why));
        }
        match &edit["keep"] {
            keep if *keep == "all" => {}
            Value::Null => clear_thinking(messages, 1),
            keep if keep["type"] == "thinking_turns" && keep["value"].as_u64() > Some(0) => {
                clear_thinking(messages, keep["value"].as_u64().unwrap_or(1));
            }
            _ => {
                let why = json!({"type": "thinking_turns", "value": 1});
                let why = format!("must be \"all\", or a number of turns such as {why}");
                return Err(ApiError::param(format!("{name}.keep"), why));
            }
        }
    }
    Ok(())
}

/// Leaves out what the model has thought before the last `turns` turns that have thoughts. A turn is what an assistant says and calls
/// between two messages of the user; results of tools do not end it.
fn clear_thinking(messages: &mut [Value], turns: u64) {
    let mut kept = 0;
    let mut has_thoughts = false;
    for message in messages.iter_mut().rev() {
        if message["role"] == "user" {
            kept += u64::from(has_thoughts);
            has_thoughts = false;
        } else if let Some(message) = message.as_object_mut().filter(|it| it.contains_key("reasoning_content")) {
            has_thoughts = true;
            if kept >= turns {
                message.remove("reasoning_content");
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::{COUNTED_MESSAGE, Object};

    fn edited(keep: &Value) -> Result<Vec<String>, String> {
        let thought = |text: &str| json!({"role": "assistant", "content": "", "reasoning_content": text});
        let user = json!({"role": "user", "content": "go"});
        let result = json!({"role": "tool", "content": "x"});
        let mut messages = vec![
            user.clone(),
            thought("a"),
            user.clone(),
            thought("b"),
            result,
            thought("c"),
            user,
            json!({"role": "assistant"}),
        ];
        let edits = json!({"edits": [{"type": "clear_thinking_20251015", "keep": keep}]});
        let body = json!({"model": "m", "messages": [{}], "context_management": edits});
        let object = Object::parse(body.to_string().as_bytes()).unwrap();
        let mut fields = object.fields(&COUNTED_MESSAGE).unwrap();
        edit(&mut messages, &mut fields).map_err(|error| error.to_string())?;
        Ok(messages.iter().filter_map(|it| it["reasoning_content"].as_str().map(str::to_owned)).collect())
    }

    #[test]
    fn thinking_before_the_last_turns_is_cleared() {
        assert_eq!(edited(&json!("all")).unwrap(), ["a", "b", "c"]);
        for (keep, kept) in
            [(json!(null), &["b", "c"][..]), (json!({"type": "thinking_turns", "value": 1}), &["b", "c"])]
        {
            assert_eq!(edited(&keep).unwrap(), kept);
        }
        assert_eq!(edited(&json!({"type": "thinking_turns", "value": 2})).unwrap(), ["a", "b", "c"]);
        for keep in [json!("some"), json!({"type": "thinking_turns", "value": 0}), json!(1)] {
            assert!(edited(&keep).unwrap_err().starts_with("`context_management.edits[0].keep` must be"), "{keep}");
        }
    }
}
