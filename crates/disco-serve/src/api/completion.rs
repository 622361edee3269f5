//! The choices in replies of `/v1/completions`.

use disco_models::text::Text;
use serde_json::{Value, json};

use super::finished::{Finish, Reply, Said, with_digests};
use super::logprobs;

/// The choice of a chunk with text.
pub(super) fn delta(index: usize, said: &Said, has_logprobs: bool, text: &Text) -> Value {
    let logprobs = has_logprobs.then(|| logprobs::completion(&said.entries, text));
    json!({"index": index, "text": said.text, "logprobs": logprobs, "finish_reason": null})
}

/// The choice of a last chunk.
pub(super) fn ending(index: usize, finish: Finish) -> Value {
    json!({"index": index, "text": "", "logprobs": null, "finish_reason": finish})
}

/// The choice of a reply that is no stream.
pub(super) fn choice(index: usize, Reply { said, ending }: &Reply, has_logprobs: bool, text: &Text) -> Value {
    let logprobs = has_logprobs.then(|| logprobs::completion(&said.entries, text));
    let choice = json!({"index": index, "text": said.text, "logprobs": logprobs, "finish_reason": ending.finish});
    with_digests(choice, ending)
}
