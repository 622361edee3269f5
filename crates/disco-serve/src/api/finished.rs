//! Texts that have ended.

use disco_models::serving::Digests;
use serde::{Serialize, Serializer};
use serde_json::{Value, json};

use crate::text::Entry;

/// Why a text has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Finish {
    /// By its own end or a stop string.
    Stop,
    /// It has as many tokens as it may.
    Length,
    /// By its own end, with calls of tools.
    ToolCalls,
}

impl Finish {
    /// The name that clients know.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Stop => "stop",
            Self::Length => "length",
            Self::ToolCalls => "tool_calls",
        }
    }
}

impl Serialize for Finish {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.name())
    }
}

/// Why a text has ended, and the stop string that ended it.
#[derive(Clone, Debug)]
pub(crate) struct Ending {
    pub(crate) finish: Finish,
    pub(crate) stop: Option<String>,
    /// The digests of its logits, if the client wants them.
    pub(crate) digests: Option<Digests>,
}

/// A call of a tool, or a part of one, with the names that clients have for it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Called {
    /// Its number among those of the text.
    pub(crate) index: usize,
    pub(crate) id: String,
    pub(crate) name: String,
    /// A JSON object, or a part of one.
    pub(crate) arguments: String,
    /// Whether this is its first part.
    pub(crate) begins: bool,
    /// Whether this is its last part. A call that is cut has none.
    pub(crate) ends: bool,
}

impl Called {
    pub(super) fn json(&self) -> Value {
        let Self { name, arguments, .. } = self;
        json!({"id": self.id, "type": "function", "function": {"name": name, "arguments": arguments}})
    }
}

/// Tokens that were read and written.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Usage {
    /// Of the prompts, each counted once.
    pub(crate) prompt: usize,
    /// Of all texts.
    pub(crate) completion: usize,
    /// Those of the prompts that the cache had.
    pub(crate) cached: usize,
    /// Those of the texts that are reasoning, with the end of the mark before it.
    pub(crate) reasoning: usize,
}

impl Usage {
    pub(super) fn json(self) -> Value {
        let Self { prompt, completion, cached, reasoning } = self;
        json!({
            "prompt_tokens": prompt, "completion_tokens": completion, "total_tokens": prompt + completion,
            "prompt_tokens_details": {"cached_tokens": cached},
            "completion_tokens_details": {"reasoning_tokens": reasoning},
        })
    }
}

/// A text, or a part of one.
#[derive(Debug, Default)]
pub(crate) struct Said {
    /// What the model has thought before.
    pub(crate) reasoning: String,
    pub(crate) text: String,
    pub(crate) calls: Vec<Called>,
    pub(crate) entries: Vec<Entry>,
}

impl Said {
    pub(crate) fn is_empty(&self) -> bool {
        self.reasoning.is_empty() && self.text.is_empty() && self.calls.is_empty() && self.entries.is_empty()
    }

    /// Adds a call, or the next part of the last one.
    pub(crate) fn call(&mut self, next: Called) {
        match self.calls.last_mut().filter(|last| last.index == next.index) {
            Some(last) => {
                last.arguments += &next.arguments;
                last.ends = next.ends;
            }
            None => self.calls.push(next),
        }
    }

    /// Adds the next part.
    pub(crate) fn extend(&mut self, next: Self) {
        self.reasoning += &next.reasoning;
        self.text += &next.text;
        next.calls.into_iter().for_each(|next| self.call(next));
        self.entries.extend(next.entries);
    }
}

/// A whole text.
#[derive(Debug)]
pub(crate) struct Reply {
    pub(crate) said: Said,
    pub(crate) ending: Ending,
}

/// A choice with the digests of its logits, if the client wants them.
pub(super) fn with_digests(mut choice: Value, ending: &Ending) -> Value {
    if let Some(digests) = &ending.digests {
        choice["logits_digest"] = json!(digests);
    }
    choice
}
