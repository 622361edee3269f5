//! The choices in replies of `/v1/chat/completions`.

use disco_models::text::Text;
use serde_json::{Value, json};

use super::finished::{Finish, Reply};
use super::logprobs;
use crate::text::Entry;

/// The choice of a first chunk.
pub(super) fn opening(index: usize) -> Value {
    json!({"index": index, "delta": {"role": "assistant", "content": ""}, "logprobs": null, "finish_reason": null})
}

/// The choice of a chunk with text.
pub(super) fn delta(index: usize, content: &str, entries: Option<&[Entry]>, text: &Text) -> Value {
    let logprobs = entries.map(|entries| logprobs::chat(entries, text));
    json!({"index": index, "delta": {"content": content}, "logprobs": logprobs, "finish_reason": null})
}

/// The choice of a last chunk.
pub(super) fn ending(index: usize, finish: Finish) -> Value {
    json!({"index": index, "delta": {}, "logprobs": null, "finish_reason": finish})
}

/// The choice of a reply that is no stream.
pub(super) fn choice(index: usize, reply: &Reply, has_logprobs: bool, text: &Text) -> Value {
    let logprobs = has_logprobs.then(|| logprobs::chat(&reply.entries, text));
    let message = json!({"role": "assistant", "content": reply.text, "refusal": null});
    json!({"index": index, "message": message, "logprobs": logprobs, "finish_reason": reply.finish})
}
