//! Anthropic's messages.

use std::sync::Arc;

use serde_json::{Value, json};

use crate::api::ApiError;
use crate::api::finished::{Called, Ending, Finish, Reply, Said, Usage};
use crate::api::writer::{Writer, named};

/// Writes one message.
pub(crate) struct MessageWriter {
    id: String,
    model: Arc<str>,
    shows_thinking: bool,
    /// Number of blocks so far.
    blocks: usize,
    /// The kind of the block that grows, the last one.
    open: Option<Block>,
    ending: Option<Ending>,
    has_called: bool,
}

/// A kind of blocks that grow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Block {
    Thinking,
    Text,
    Call,
}

impl MessageWriter {
    pub(crate) fn new(id: String, model: Arc<str>, shows_thinking: bool) -> Self {
        Self { id, model, shows_thinking, blocks: 0, open: None, ending: None, has_called: false }
    }

    fn message(&self, content: &[Value], ending: Option<&Ending>, usage: &Value) -> Value {
        let Self { id, model, .. } = self;
        let model: &str = model;
        json!({
            "id": id, "type": "message", "role": "assistant", "model": model, "content": content,
            "stop_reason": ending.map(|ending| self.reason(ending)),
            "stop_sequence": ending.and_then(|ending| ending.stop.clone()), "usage": usage,
        })
    }

    fn reason(&self, ending: &Ending) -> &'static str {
        match (ending.finish, &ending.stop) {
            (_, Some(_)) => "stop_sequence",
            (Finish::Length, None) => "max_tokens",
            _ if self.has_called => "tool_use",
            _ => "end_turn",
        }
    }

    /// The events that end the block that grows.
    fn close(&mut self) -> String {
        if self.open.take().is_none() {
            return String::new();
        }
        self.stop()
    }

    fn stop(&mut self) -> String {
        let index = self.blocks;
        self.blocks += 1;
        named(&json!({"type": "content_block_stop", "index": index}))
    }

    fn start(&self, block: &Value) -> String {
        named(&json!({"type": "content_block_start", "index": self.blocks, "content_block": block}))
    }

    fn delta(&self, delta: &Value) -> String {
        named(&json!({"type": "content_block_delta", "index": self.blocks, "delta": delta}))
    }

    /// The events that add thoughts, or text if these are none, to a block, which is a new one if another kind grows.
    fn grow(&mut self, is_thinking: bool, text: &str) -> String {
        let (block, start, delta) = if is_thinking {
            let start = json!({"type": "thinking", "thinking": "", "signature": ""});
            (Block::Thinking, start, json!({"type": "thinking_delta", "thinking": text}))
        } else {
            (Block::Text, json!({"type": "text", "text": ""}), json!({"type": "text_delta", "text": text}))
        };
        let mut events = String::new();
        if self.open != Some(block) {
            events += &self.open(block, &start);
        }
        events + &self.delta(&delta)
    }

    /// The events that begin a block.
    fn open(&mut self, block: Block, start: &Value) -> String {
        let events = self.close() + &self.start(start);
        self.open = Some(block);
        events
    }

    /// The events of a part of a call.
    fn call(&mut self, called: &Called) -> String {
        let mut events = String::new();
        if called.begins {
            events += &self.open(Block::Call, &tool_use(called, &json!({})));
        }
        if !called.arguments.is_empty() {
            events += &self.delta(&json!({"type": "input_json_delta", "partial_json": called.arguments}));
        }
        // A text that ends in a cut call does not end with a call.
        self.has_called = called.ends;
        if called.ends {
            events += &self.close();
        }
        events
    }
}

/// A call as a block, with these arguments.
fn tool_use(called: &Called, input: &Value) -> Value {
    json!({"type": "tool_use", "id": called.id, "name": called.name, "input": input})
}

/// Tokens that the cache had are counted apart. It is not known at the begin of a stream how many these are.
fn tokens(Usage { prompt, completion, cached, .. }: Usage) -> Value {
    json!({
        "input_tokens": prompt.saturating_sub(cached), "cache_read_input_tokens": cached, "cache_creation_input_tokens": 0,
        "output_tokens": completion,
    })
}

impl Writer for MessageWriter {
    fn opening(&mut self, _: usize, prompt: usize) -> String {
        let message = self.message(&[], None, &tokens(Usage { prompt, ..Usage::default() }));
        named(&json!({"type": "message_start", "message": message})) + &self.waiting("")
    }

    fn waiting(&mut self, _: &str) -> String {
        named(&json!({"type": "ping"}))
    }

    fn part(&mut self, _: usize, said: &Said, ending: Option<&Ending>) -> String {
        let mut events = String::new();
        if self.shows_thinking && !said.reasoning.is_empty() {
            events += &self.grow(true, &said.reasoning);
        }
        if !said.text.is_empty() {
            events += &self.grow(false, &said.text);
        }
        for called in &said.calls {
            events += &self.call(called);
        }
        if let Some(ending) = ending {
            events += &self.close();
            self.ending = Some(ending.clone());
        }
        events
    }

    fn closing(&mut self, usage: Usage) -> String {
        let ending = self.ending.as_ref();
        let delta = json!({
            "stop_reason": ending.map(|ending| self.reason(ending)),
            "stop_sequence": ending.and_then(|ending| ending.stop.clone()),
        });
        named(&json!({"type": "message_delta", "delta": delta, "usage": tokens(usage)}))
            + &named(&json!({"type": "message_stop"}))
    }

    fn error(&mut self, error: &ApiError) -> String {
        named(&error.anthropic())
    }

    fn whole(&mut self, replies: &[Reply], usage: Usage) -> Value {
        let mut content = Vec::new();
        let mut last = None;
        for Reply { said, ending } in replies {
            if self.shows_thinking && !said.reasoning.is_empty() {
                content.push(json!({"type": "thinking", "thinking": said.reasoning, "signature": ""}));
            }
            if !said.text.is_empty() {
                content.push(json!({"type": "text", "text": said.text}));
            }
            for called in &said.calls {
                let input: Option<Value> = serde_json::from_str(&called.arguments).ok();
                self.has_called = called.ends && input.is_some();
                content.push(tool_use(called, &input.unwrap_or_else(|| json!({}))));
            }
            last = Some(ending);
        }
        self.message(&content, last, &tokens(usage))
    }
}
