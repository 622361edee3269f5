//! Replies and chunks of streams.

use std::sync::Arc;

use disco_models::text::Text;
use serde_json::{Value, json};

use super::finished::{Finish, Reply, Said, Usage};
use super::{Kind, chat, completion};

/// Writes the reply to one request, at once or in chunks.
pub(crate) struct Format {
    pub(crate) kind: Kind,
    pub(crate) id: String,
    /// Seconds since 1970.
    pub(crate) created: u64,
    pub(crate) model: Arc<str>,
    /// What logits depend on, once it is known.
    pub(crate) fingerprint: Option<String>,
    pub(crate) text: Arc<Text>,
    pub(crate) has_logprobs: bool,
    /// Whether the last chunk has the usage. All other chunks then have `"usage": null`.
    pub(crate) tells_usage: bool,
}

impl Format {
    /// The first chunk of a choice, if there is one before its text.
    pub(crate) fn opening(&self, index: usize) -> Option<Value> {
        (self.kind == Kind::Chat).then(|| self.chunk(chat::opening(index)))
    }

    /// A chunk with a part of a text.
    pub(crate) fn delta(&self, index: usize, said: &Said) -> Value {
        self.chunk(match self.kind {
            Kind::Chat => chat::delta(index, said, self.has_logprobs, &self.text),
            Kind::Completion => completion::delta(index, said, self.has_logprobs, &self.text),
        })
    }

    /// The last chunk of a choice.
    pub(crate) fn ending(&self, index: usize, finish: Finish) -> Value {
        self.chunk(match self.kind {
            Kind::Chat => chat::ending(index, finish),
            Kind::Completion => completion::ending(index, finish),
        })
    }

    /// The chunk after those of all choices, if the client wants it.
    pub(crate) fn usage(&self, usage: Usage) -> Option<Value> {
        self.tells_usage.then(|| self.object(self.chunk_name(), json!([]), Some(usage.json())))
    }

    /// The reply that is no stream.
    pub(crate) fn whole(&self, replies: &[Reply], usage: Usage) -> Value {
        let choice = |(index, reply)| match self.kind {
            Kind::Chat => chat::choice(index, reply, self.has_logprobs, &self.text),
            Kind::Completion => completion::choice(index, reply, self.has_logprobs, &self.text),
        };
        let choices = replies.iter().enumerate().map(choice);
        let name = match self.kind {
            Kind::Chat => "chat.completion",
            Kind::Completion => "text_completion",
        };
        self.object(name, choices.collect(), Some(usage.json()))
    }

    fn chunk(&self, choice: Value) -> Value {
        self.object(self.chunk_name(), json!([choice]), self.tells_usage.then_some(Value::Null))
    }

    fn chunk_name(&self) -> &'static str {
        match self.kind {
            Kind::Chat => "chat.completion.chunk",
            Kind::Completion => "text_completion",
        }
    }

    fn object(&self, name: &str, choices: Value, usage: Option<Value>) -> Value {
        let Self { id, created, model, fingerprint, .. } = self;
        let model: &str = model;
        let mut object = json!({
            "id": id, "object": name, "created": created, "model": model, "system_fingerprint": fingerprint, "choices": choices,
        });
        if let Some(usage) = usage {
            object["usage"] = usage;
        }
        object
    }
}
