//! Responses.

use std::sync::Arc;

use serde_json::{Map, Value, json};

use super::tools::parted;
use crate::api::ApiError;
use crate::api::finished::{Called, Ending, Finish, Reply, Said, Usage};
use crate::api::writer::{Writer, named};

/// Writes one response.
pub(crate) struct ResponseWriter {
    id: String,
    created: u64,
    model: Arc<str>,
    repeated: Map<String, Value>,
    /// Number of events so far.
    sequence: u64,
    /// The items that are complete.
    output: Vec<Value>,
    /// The item that grows: its kind, and its text so far.
    open: Option<(Item, String)>,
    /// The call that grows.
    call: Option<Called>,
    ending: Option<Ending>,
}

/// A kind of items that grow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Item {
    Reasoning,
    Message,
}

impl Item {
    /// The names of its parts of content, and of their events.
    fn part(self) -> (&'static str, &'static str) {
        match self {
            Self::Reasoning => ("reasoning_text", "response.reasoning_text"),
            Self::Message => ("output_text", "response.output_text"),
        }
    }

    fn content(self, text: &str) -> Value {
        match self {
            Self::Reasoning => json!({"type": "reasoning_text", "text": text}),
            Self::Message => json!({"type": "output_text", "text": text, "annotations": [], "logprobs": []}),
        }
    }

    fn object(self, id: &str, content: &[Value], status: &str) -> Value {
        match self {
            Self::Reasoning => {
                json!({"type": "reasoning", "id": id, "summary": [], "content": content, "status": status})
            }
            Self::Message => {
                json!({"type": "message", "id": id, "role": "assistant", "content": content, "status": status})
            }
        }
    }
}

impl ResponseWriter {
    pub(crate) fn new(id: String, created: u64, model: Arc<str>, repeated: Map<String, Value>) -> Self {
        Self { id, created, model, repeated, sequence: 0, output: Vec::new(), open: None, call: None, ending: None }
    }

    fn response(&self, status: &str, usage: Option<Usage>, error: &Value) -> Value {
        let model: &str = &self.model;
        let is_cut = status == "incomplete";
        let mut response = json!({
            "id": self.id, "object": "response", "created_at": self.created, "status": status, "model": model,
            "output": self.output, "error": error, "store": false, "previous_response_id": null, "truncation": "disabled",
            "incomplete_details": is_cut.then(|| json!({"reason": "max_output_tokens"})), "background": false,
            "usage": usage.map(|Usage { prompt, completion, cached, reasoning }| json!({
                "input_tokens": prompt, "input_tokens_details": {"cached_tokens": cached}, "output_tokens": completion,
                "output_tokens_details": {"reasoning_tokens": reasoning}, "total_tokens": prompt + completion,
            })),
        });
        for (name, value) in &self.repeated {
            response[name] = value.clone();
        }
        response
    }

    /// An event with the next number.
    fn event(&mut self, kind: &str, mut fields: Value) -> String {
        fields["type"] = kind.into();
        fields["sequence_number"] = self.sequence.into();
        self.sequence += 1;
        named(&fields)
    }

    /// The id of the item with a number.
    fn item_id(&self, prefix: &str, number: usize) -> String {
        format!("{prefix}_{}_{number}", self.id.trim_start_matches("resp_"))
    }

    /// The id of the item that grows.
    fn open_id(&self, item: Item) -> String {
        self.item_id(if item == Item::Message { "msg" } else { "rs" }, self.output.len())
    }

    /// The events that add text to an item of a kind, which is a new one if another kind grows.
    fn grow(&mut self, item: Item, text: &str) -> String {
        let mut events = String::new();
        let (id, index) = match &self.open {
            Some((open, _)) if *open == item => (self.open_id(item), self.output.len()),
            _ => {
                events += &self.close("completed");
                let (id, index) = (self.open_id(item), self.output.len());
                self.open = Some((item, String::new()));
                let started = item.object(&id, &[], "in_progress");
                events += &self.event("response.output_item.added", json!({"output_index": index, "item": started}));
                let part = json!({"item_id": id, "output_index": index, "content_index": 0, "part": item.content("")});
                events += &self.event("response.content_part.added", part);
                (id, index)
            }
        };
        if let Some((_, all)) = &mut self.open {
            all.push_str(text);
        }
        let mut delta = json!({"item_id": id, "output_index": index, "content_index": 0, "delta": text});
        if item == Item::Message {
            delta["logprobs"] = json!([]);
        }
        events + &self.event(&format!("{}.delta", item.part().1), delta)
    }

    /// The events that end the item that grows.
    fn close(&mut self, status: &str) -> String {
        if let Some(call) = self.call.take() {
            return self.close_call(&call, status);
        }
        let Some((item, text)) = self.open.take() else { return String::new() };
        let (id, index) = (self.open_id(item), self.output.len());
        let mut done = json!({"item_id": id, "output_index": index, "content_index": 0, "text": text});
        if item == Item::Message {
            done["logprobs"] = json!([]);
        }
        let mut events = self.event(&format!("{}.done", item.part().1), done);
        let content = item.content(&text);
        let part = json!({"item_id": id, "output_index": index, "content_index": 0, "part": content});
        events += &self.event("response.content_part.done", part);
        events + &self.complete(item.object(&id, &[content], status))
    }

    /// The event that ends an item.
    fn complete(&mut self, item: Value) -> String {
        let index = self.output.len();
        self.output.push(item.clone());
        self.event("response.output_item.done", json!({"output_index": index, "item": item}))
    }

    /// The events of a part of a call.
    fn call(&mut self, part: &Called) -> String {
        let mut events = String::new();
        if part.begins {
            events += &self.close("completed");
            let begun = Called { arguments: String::new(), ..part.clone() };
            let item = self.item_of(&begun, "in_progress");
            self.call = Some(begun);
            let added = json!({"output_index": self.output.len(), "item": item});
            events += &self.event("response.output_item.added", added);
        }
        let Some(call) = &mut self.call else { return events };
        call.arguments += &part.arguments;
        if !part.arguments.is_empty() {
            let item_id = self.item_id("fc", self.output.len());
            let delta = json!({"item_id": item_id, "output_index": self.output.len(), "delta": part.arguments});
            events += &self.event("response.function_call_arguments.delta", delta);
        }
        if part.ends {
            events += &self.close("completed");
        }
        events
    }

    /// A call as an item.
    fn item_of(&self, called: &Called, status: &str) -> Value {
        let Called { id, name, arguments, .. } = called;
        let (namespace, name) = parted(&self.repeated["tools"], name);
        let mut item = json!({
            "type": "function_call", "id": self.item_id("fc", self.output.len()), "call_id": id, "name": name, "arguments": arguments,
            "status": status,
        });
        if let Some(namespace) = namespace {
            item["namespace"] = namespace.into();
        }
        item
    }

    /// The events that end a call.
    fn close_call(&mut self, call: &Called, status: &str) -> String {
        let (item_id, index) = (self.item_id("fc", self.output.len()), self.output.len());
        let (_, name) = parted(&self.repeated["tools"], &call.name);
        let done = json!({"item_id": item_id, "output_index": index, "name": name, "arguments": call.arguments});
        let events = self.event("response.function_call_arguments.done", done);
        let item = self.item_of(call, status);
        events + &self.complete(item)
    }

    fn status(&self) -> &'static str {
        match &self.ending {
            Some(Ending { finish: Finish::Length, .. }) => "incomplete",
            _ => "completed",
        }
    }
}

impl Writer for ResponseWriter {
    fn opening(&mut self, _: usize, _: usize) -> String {
        let response = self.response("in_progress", None, &Value::Null);
        self.event("response.created", json!({"response": response})) + &self.waiting("")
    }

    fn waiting(&mut self, _: &str) -> String {
        let response = self.response("in_progress", None, &Value::Null);
        self.event("response.in_progress", json!({"response": response}))
    }

    fn part(&mut self, _: usize, said: &Said, ending: Option<&Ending>) -> String {
        let mut events = String::new();
        if !said.reasoning.is_empty() {
            events += &self.grow(Item::Reasoning, &said.reasoning);
        }
        if !said.text.is_empty() {
            events += &self.grow(Item::Message, &said.text);
        }
        for called in &said.calls {
            events += &self.call(called);
        }
        if let Some(ending) = ending {
            self.ending = Some(ending.clone());
            // The text ends in a call that is not complete.
            let status = if self.call.is_some() { "incomplete" } else { self.status() };
            events += &self.close(status);
        }
        events
    }

    fn closing(&mut self, usage: Usage) -> String {
        let status = self.status();
        let response = self.response(status, Some(usage), &Value::Null);
        self.event(&format!("response.{status}"), json!({"response": response}))
    }

    fn error(&mut self, error: &ApiError) -> String {
        let why = json!({"code": error.code(), "message": error.to_string()});
        let response = self.response("failed", None, &why);
        self.event("response.failed", json!({"response": response}))
    }

    fn whole(&mut self, replies: &[Reply], usage: Usage) -> Value {
        for Reply { said, ending } in replies {
            // The items are those of the events.
            drop(self.part(0, said, Some(ending)));
        }
        self.response(self.status(), Some(usage), &Value::Null)
    }
}
