//! Chats, of which a template makes a text.

use serde_json::{Map, Value as Json, json};

use super::messages;

/// A chat with a model: messages, and other things that a chat template knows.
///
/// ```
/// use disco_models::text::Chat;
/// use serde_json::json;
///
/// let mut chat = Chat::new(vec![
///     json!({"role": "user", "content": "Is it raining in Oslo?"}),
///     json!({"role": "assistant", "content": "In which part?"}),
///     json!({"role": "user", "content": "In the north."}),
/// ]);
/// chat.tools = Some(vec![json!({"type": "function", "function": {"name": "weather", "parameters": {}}})]);
/// chat.variables.insert("enable_thinking".into(), json!(false));
/// ```
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct Chat {
    /// The messages: objects with the keys `role` and `content`, and others that the template knows (`tool_calls`).
    pub messages: Vec<Json>,
    /// JSON schemas of the functions that the model can call. An empty list is not the same as none: the template for tools
    /// is used for it.
    pub tools: Option<Vec<Json>>,
    /// Documents that the model can quote: objects with the keys `title` and `text`.
    pub documents: Option<Vec<Json>>,
    /// Other variables of the template, such as `enable_thinking`. The names of other fields are ignored.
    pub variables: Map<String, Json>,
    /// Whether the text ends with the beginning of the model's answer.
    pub add_generation_prompt: bool,
    /// Whether the text ends with the last message, whose text the model continues. It is one of the assistant.
    pub continues: bool,
}

impl Chat {
    /// A chat with these messages, which the model answers.
    pub fn new(messages: Vec<Json>) -> Self {
        Self {
            messages,
            tools: None,
            documents: None,
            variables: Map::new(),
            add_generation_prompt: true,
            continues: false,
        }
    }

    /// A chat with one message of the user, after the system's message if there is one.
    pub fn with_prompt(prompt: &str, system: Option<&str>) -> Self {
        let system = system.map(|system| json!({"role": "system", "content": system}));
        Self::new(system.into_iter().chain([json!({"role": "user", "content": prompt})]).collect())
    }

    /// The chat for templates that refuse instructions behind other messages, or two messages of the user in a row; `None` if it has none.
    pub(super) fn strict(&self) -> Option<Self> {
        let messages = messages::strict(&self.messages)?;
        Some(Self { messages, ..self.clone() })
    }

    /// All texts and keys of the chat.
    pub(super) fn texts(&self) -> Vec<&str> {
        let lists = [Some(&self.messages), self.tools.as_ref(), self.documents.as_ref()];
        let mut texts = Vec::new();
        for value in lists.into_iter().flatten().flatten().chain(self.variables.values()) {
            collect(value, &mut texts);
        }
        texts
    }

    /// The chat with all its texts and keys as `change` makes them.
    pub(super) fn map(&self, change: &impl Fn(&str) -> String) -> Self {
        let list = |values: &Vec<Json>| values.iter().map(|value| changed(value, change)).collect();
        let variables = self.variables.iter().map(|(name, value)| (name.clone(), changed(value, change)));
        Self {
            messages: list(&self.messages),
            tools: self.tools.as_ref().map(list),
            documents: self.documents.as_ref().map(list),
            variables: variables.collect(),
            ..*self
        }
    }
}

fn collect<'a>(value: &'a Json, texts: &mut Vec<&'a str>) {
    match value {
        Json::String(text) => texts.push(text),
        Json::Array(values) => values.iter().for_each(|value| collect(value, texts)),
        Json::Object(entries) => entries.iter().for_each(|(key, value)| {
            texts.push(key);
            collect(value, texts);
        }),
        Json::Null | Json::Bool(_) | Json::Number(_) => {}
    }
}

fn changed(value: &Json, change: &impl Fn(&str) -> String) -> Json {
    match value {
        Json::String(text) => Json::String(change(text)),
        Json::Array(values) => values.iter().map(|value| changed(value, change)).collect(),
        Json::Object(entries) => entries.iter().map(|(key, value)| (change(key), changed(value, change))).collect(),
        Json::Null | Json::Bool(_) | Json::Number(_) => value.clone(),
    }
}
