//! Parting a growing text into reasoning, text and calls of tools.

use super::Call;
use super::parser::{Parser, Part};
use crate::text::Reasoning;

/// What parts a text; nothing does by default.
#[derive(Debug, Default)]
pub(crate) struct Parting {
    pub(crate) reasoning: Option<Reasoning>,
    pub(crate) calls: Option<Parser>,
}

/// A part of a text.
#[derive(Debug, Default, PartialEq)]
pub(crate) struct Parted {
    pub(crate) reasoning: String,
    pub(crate) text: String,
    pub(crate) calls: Vec<Call>,
}

impl Parting {
    /// Whether the text so far ends inside of the reasoning.
    pub(crate) fn thinks(&self) -> bool {
        self.reasoning.as_ref().is_some_and(Reasoning::is_open)
    }

    /// Adds a part of the text, or the last one.
    pub(crate) fn push(&mut self, text: String, is_last: bool) -> Parted {
        let mut parted = Parted { text, ..Parted::default() };
        if let Some(reasoning) = &mut self.reasoning {
            let mut thought = reasoning.push(&parted.text);
            if is_last {
                let rest = reasoning.finish();
                thought.reasoning += &rest.reasoning;
                thought.text += &rest.text;
            }
            (parted.reasoning, parted.text) = (thought.reasoning, thought.text);
        }
        if let Some(calls) = &mut self.calls {
            let mut parts = calls.push(&std::mem::take(&mut parted.text));
            if is_last {
                parts.extend(calls.finish());
            }
            for part in parts {
                match part {
                    Part::Text(text) => parted.text += &text,
                    Part::Call(call) => parted.calls.push(call),
                }
            }
        }
        parted
    }
}
