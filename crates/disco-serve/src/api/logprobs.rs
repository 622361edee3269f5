//! The two forms of logprobs.

use std::fmt::Write as _;

use disco_models::text::Text;
use serde_json::{Map, Value, json};

use crate::text::Entry;

/// OpenAI's logprob for a probability of 0: JSON has no negative infinity.
const LEAST: f32 = -9999.0;

/// The form of chats.
pub(super) fn chat(entries: &[Entry], text: &Text) -> Value {
    let named = |token: u32, logprob: f32| {
        let bytes = text.piece(token).unwrap_or_default();
        json!({"token": name(&bytes), "logprob": number(logprob), "bytes": bytes})
    };
    let content = entries.iter().map(|Entry { token, .. }| {
        let mut entry = named(token.id, token.logprob);
        entry["top_logprobs"] = token.top.iter().map(|(token, logprob)| named(*token, *logprob)).collect();
        entry
    });
    json!({"content": content.collect::<Value>(), "refusal": null})
}

/// The form of completions. The most probable tokens have the chosen one among them, as OpenAI's do.
pub(super) fn completion(entries: &[Entry], text: &Text) -> Value {
    let name = |token| name_of_token(token, text);
    let top = |entry: &Entry| {
        if entry.token.logprob.is_nan() {
            return Value::Null;
        }
        let chosen = (entry.token.id, entry.token.logprob);
        let all = entry.token.top.iter().copied().chain([chosen]);
        Value::Object(all.map(|(token, logprob)| (name(token), number(logprob))).collect::<Map<_, _>>())
    };
    json!({
        "tokens": entries.iter().map(|entry| name(entry.token.id)).collect::<Value>(),
        "token_logprobs": entries.iter().map(|entry| number(entry.token.logprob)).collect::<Value>(),
        "top_logprobs": entries.iter().map(top).collect::<Value>(),
        "text_offset": entries.iter().map(|entry| entry.offset).collect::<Value>(),
    })
}

/// The text of a token; if it is a part of a character, its bytes.
pub(crate) fn name_of_token(token: u32, text: &Text) -> String {
    name(&text.piece(token).unwrap_or_default())
}

/// The text of a token; if it is a part of a character, its bytes as OpenAI writes them.
fn name(bytes: &[u8]) -> String {
    match std::str::from_utf8(bytes) {
        Ok(text) => text.to_owned(),
        Err(_) => bytes.iter().fold(String::from("bytes:"), |mut name, byte| {
            // Writing to a string can't fail.
            let _ = write!(name, "\\x{byte:02x}");
            name
        }),
    }
}

/// The first token of a prompt has none.
fn number(logprob: f32) -> Value {
    if logprob.is_nan() { Value::Null } else { logprob.max(LEAST).into() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_part_of_a_character_is_named_by_its_bytes() {
        assert_eq!(name(" é".as_bytes()), " é");
        assert_eq!(name(&[0xe2, 0x82]), "bytes:\\xe2\\x82");
    }

    #[test]
    fn a_logprob_is_a_number_of_json_or_null() {
        assert_eq!(number(f32::NAN), Value::Null);
        assert_eq!(number(f32::NEG_INFINITY), json!(-9999.0));
        assert_eq!(number(-0.5), json!(-0.5));
    }
}
