//! Calls of tools in the texts of models.
//!
//! Each family of models writes calls in a [`Form`] of its own, which the chat template shows. A [`Parting`] parts the text while it
//! grows: a call is sent once its name is known and its arguments have begun, and from then on it stays a call, whatever follows. A
//! grammar of the form holds a model to the schemas of its tools.

mod arguments;
mod channels;
mod constrain;
mod elements;
mod form;
mod head;
mod json;
mod object;
mod pairs;
mod parser;
mod parting;
mod reading;
#[cfg(test)]
mod rendered;
mod tools;

pub(crate) use constrain::{grammar, in_final};
pub(crate) use form::Form;
pub(crate) use parting::Parting;
pub(crate) use tools::{Choice, Tool, Tools};

/// The next part of a text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Part {
    /// What the model thinks.
    Reasoning(String),
    /// What it says.
    Text(String),
    /// A call of the tool with this name begins.
    Begin(String),
    /// More of its arguments, a JSON object. If the model writes something else, or the text is cut, they are no JSON.
    Arguments(String),
    /// The arguments are complete.
    End,
}
