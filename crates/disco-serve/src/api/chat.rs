//! The choices in replies of `/v1/chat/completions`.

use disco_models::text::Text;
use serde_json::{Value, json};

use super::finished::{Called, Finish, Reply, Said, with_digests};
use super::logprobs;

/// The choice of a first chunk.
pub(super) fn opening(index: usize) -> Value {
    json!({"index": index, "delta": {"role": "assistant", "content": ""}, "logprobs": null, "finish_reason": null})
}

/// The choice of a chunk with a part of the text.
pub(super) fn delta(index: usize, said: &Said, has_logprobs: bool, text: &Text) -> Value {
    let logprobs = has_logprobs.then(|| logprobs::chat(&said.entries, text));
    let mut delta = json!({});
    think(&mut delta, &said.reasoning);
    if !said.text.is_empty() || (said.calls.is_empty() && said.reasoning.is_empty()) {
        delta["content"] = said.text.as_str().into();
    }
    if !said.calls.is_empty() {
        let calls = said.calls.iter().map(|called| {
            let mut call =
                if called.begins { called.json() } else { json!({"function": {"arguments": called.arguments}}) };
            call["index"] = called.index.into();
            call
        });
        delta["tool_calls"] = calls.collect();
    }
    json!({"index": index, "delta": delta, "logprobs": logprobs, "finish_reason": null})
}

/// Adds reasoning, if there is some, by both names that clients read.
fn think(message: &mut Value, reasoning: &str) {
    for name in ["reasoning", "reasoning_content"].into_iter().filter(|_| !reasoning.is_empty()) {
        message[name] = reasoning.into();
    }
}

/// The choice of a last chunk.
pub(super) fn ending(index: usize, finish: Finish) -> Value {
    json!({"index": index, "delta": {}, "logprobs": null, "finish_reason": finish})
}

/// The choice of a reply that is no stream.
pub(super) fn choice(index: usize, Reply { said, ending }: &Reply, has_logprobs: bool, text: &Text) -> Value {
    let logprobs = has_logprobs.then(|| logprobs::chat(&said.entries, text));
    let is_beside = said.text.is_empty() && !(said.calls.is_empty() && said.reasoning.is_empty());
    let content = Some(said.text.as_str()).filter(|_| !is_beside);
    let mut message = json!({"role": "assistant", "content": content, "refusal": null});
    think(&mut message, &said.reasoning);
    if !said.calls.is_empty() {
        message["tool_calls"] = said.calls.iter().map(Called::json).collect();
    }
    let choice = json!({"index": index, "message": message, "logprobs": logprobs, "finish_reason": ending.finish});
    with_digests(choice, ending)
}
