//! The choices in replies of `/v1/chat/completions`.

use disco_models::text::Text;
use serde_json::{Value, json};

use super::finished::{Called, Finish, Reply};
use super::logprobs;
use crate::text::Entry;

/// The choice of a first chunk.
pub(super) fn opening(index: usize) -> Value {
    json!({"index": index, "delta": {"role": "assistant", "content": ""}, "logprobs": null, "finish_reason": null})
}

/// The choice of a chunk with text or calls.
pub(super) fn delta(index: usize, content: &str, calls: &[Called], entries: Option<&[Entry]>, text: &Text) -> Value {
    let logprobs = entries.map(|entries| logprobs::chat(entries, text));
    let mut delta = json!({});
    if calls.is_empty() || !content.is_empty() {
        delta["content"] = content.into();
    }
    if !calls.is_empty() {
        let calls = calls.iter().map(|called| {
            let mut call = called.json();
            call["index"] = called.index.into();
            call
        });
        delta["tool_calls"] = calls.collect();
    }
    json!({"index": index, "delta": delta, "logprobs": logprobs, "finish_reason": null})
}

/// The choice of a last chunk.
pub(super) fn ending(index: usize, finish: Finish) -> Value {
    json!({"index": index, "delta": {}, "logprobs": null, "finish_reason": finish})
}

/// The choice of a reply that is no stream.
pub(super) fn choice(index: usize, reply: &Reply, has_logprobs: bool, text: &Text) -> Value {
    let logprobs = has_logprobs.then(|| logprobs::chat(&reply.entries, text));
    let mut message = json!({"role": "assistant", "content": reply.text, "refusal": null});
    if !reply.calls.is_empty() {
        message["tool_calls"] = reply.calls.iter().map(Called::json).collect();
        if reply.text.is_empty() {
            message["content"] = Value::Null;
        }
    }
    json!({"index": index, "message": message, "logprobs": logprobs, "finish_reason": reply.finish})
}
