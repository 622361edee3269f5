//! Known parameters that the server does not support. Each one changes the reply, so ignoring it would give the client
//! another reply than the one it asked for.

use serde_json::Value;

use super::{ApiError, Fields};

/// A parameter, and its values that have no effect.
struct Unsupported {
    name: &'static str,
    is_harmless: fn(&Value) -> bool,
    /// Advice for the client, which completes the sentence of the error.
    instead: &'static str,
}

const fn row(name: &'static str, is_harmless: fn(&Value) -> bool) -> Unsupported {
    Unsupported { name, is_harmless, instead: "" }
}

fn never(_: &Value) -> bool {
    false
}

fn is_false(value: &Value) -> bool {
    *value == false
}

fn is_true(value: &Value) -> bool {
    *value == true
}

fn is_empty(value: &Value) -> bool {
    value.as_array().is_some_and(Vec::is_empty)
}

fn is_none(value: &Value) -> bool {
    *value == "none" || *value == "auto"
}

fn is_text(value: &Value) -> bool {
    value["type"] == "text"
}

fn is_list_of_text(value: &Value) -> bool {
    value.as_array().is_some_and(|list| list.iter().all(|entry| entry == "text"))
}

fn is_one(value: &Value) -> bool {
    value.as_f64() == Some(1.0)
}

const BOTH: &[Unsupported] = &[
    row("response_format", is_text),
    row("use_beam_search", is_false),
    row("length_penalty", is_one),
    row("guided_json", never),
    row("guided_regex", never),
    row("guided_choice", never),
    row("guided_grammar", never),
    row("structured_outputs", never),
    row("bad_words", is_empty),
    row("allowed_token_ids", never),
    row("logits_processors", never),
    row("truncate_prompt_tokens", never),
    row("include_stop_str_in_output", is_false),
    row("skip_special_tokens", is_true),
    row("prompt_logprobs", never),
    row("return_token_ids", is_false),
    row("return_tokens_as_token_ids", is_false),
    row("kv_transfer_params", never),
];

const CHAT: &[Unsupported] = &[
    row("tools", is_empty),
    row("tool_choice", is_none),
    row("functions", is_empty),
    row("function_call", is_none),
    row("audio", never),
    row("modalities", is_list_of_text),
    row("prediction", never),
    row("web_search_options", never),
    row("documents", is_empty),
    row("echo", is_false),
    row("add_generation_prompt", is_true),
    row("continue_final_message", is_false),
    row("chat_template", never),
    row("best_of", is_one),
];

const COMPLETION: &[Unsupported] = &[
    Unsupported { name: "suffix", is_harmless: |value| *value == "", instead: "" },
    Unsupported { name: "best_of", is_harmless: is_one, instead: ": use `n`, which returns all texts" },
    row("prompt_embeds", never),
    Unsupported { name: "messages", is_harmless: never, instead: " here: use /v1/chat/completions" },
];

/// # Errors
/// A field of a chat asks for something that is not supported.
pub(super) fn refuse_in_chat(fields: &mut Fields) -> Result<(), ApiError> {
    refuse(fields, CHAT).and_then(|()| refuse(fields, BOTH))
}

/// # Errors
/// A field of a completion asks for something that is not supported.
pub(super) fn refuse_in_completion(fields: &mut Fields) -> Result<(), ApiError> {
    refuse(fields, COMPLETION).and_then(|()| refuse(fields, BOTH))
}

fn refuse(fields: &mut Fields, table: &[Unsupported]) -> Result<(), ApiError> {
    for row in table {
        if fields.take(row.name).is_some_and(|value| !(row.is_harmless)(&value)) {
            return Err(ApiError::Unsupported { param: row.name, instead: row.instead });
        }
    }
    Ok(())
}
