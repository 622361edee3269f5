//! Parting a growing text into reasoning, text and calls of tools.

use std::sync::Arc;

use super::channels::Channels;
use super::parser::Parser;
use super::{Form, Part, Tool};
use crate::text::Reasoning;

/// What parts a text; nothing does by default.
#[derive(Debug, Default)]
pub(crate) struct Parting {
    /// Reasoning in front.
    reasoning: Option<Reasoning>,
    /// Calls behind it.
    calls: Option<Parser>,
    /// Both in channels.
    channels: Option<Channels>,
}

impl Parting {
    /// Parts reasoning, and calls of tools in a form other than [`Form::Harmony`].
    pub(crate) fn new(reasoning: Option<Reasoning>, calls: Option<(Form, Arc<[Tool]>)>) -> Self {
        let calls = calls.map(|(form, tools)| Parser::new(form, tools));
        Self { reasoning, calls, channels: None }
    }

    /// Parts texts of [`Form::Harmony`]. Without `separates`, reasoning is text. A text that `is_begun` goes on with a message.
    pub(crate) fn channels(tools: Arc<[Tool]>, separates: bool, is_begun: bool) -> Self {
        Self { channels: Some(Channels::new(tools, separates, is_begun)), ..Self::default() }
    }

    /// Whether the text so far ends inside of the reasoning.
    pub(crate) fn thinks(&self) -> bool {
        let in_front = self.reasoning.as_ref().is_some_and(Reasoning::is_open);
        in_front || self.channels.as_ref().is_some_and(Channels::is_thinking)
    }

    /// Adds a part of the text, or the last one.
    pub(crate) fn push(&mut self, mut text: String, is_last: bool) -> Vec<Part> {
        let mut parts = Vec::new();
        if let Some(channels) = &mut self.channels {
            parts.extend(channels.push(&text));
            if is_last {
                parts.extend(channels.finish());
            }
            return parts;
        }
        if let Some(reasoning) = &mut self.reasoning {
            let mut thought = reasoning.push(&text);
            if is_last {
                let rest = reasoning.finish();
                thought.reasoning += &rest.reasoning;
                thought.text += &rest.text;
            }
            if !thought.reasoning.is_empty() {
                parts.push(Part::Reasoning(thought.reasoning));
            }
            text = thought.text;
        }
        if let Some(calls) = &mut self.calls {
            parts.extend(calls.push(&text));
            if is_last {
                parts.extend(calls.finish());
            }
        } else if !text.is_empty() {
            parts.push(Part::Text(text));
        }
        parts
    }
}
