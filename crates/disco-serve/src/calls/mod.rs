//! Calls of tools in the texts of models.
//!
//! Each family of models writes calls in a [`Form`] of its own, which the chat template shows. A [`Parser`] parts them from the text
//! while it grows, and a grammar of the form holds a model to the schemas of its tools.

mod constrain;
mod form;
mod parser;
mod parting;
mod read;
mod tools;

pub(crate) use constrain::grammar;
pub(crate) use form::Form;
pub(crate) use parser::Parser;
pub(crate) use parting::{Parted, Parting};
pub(crate) use tools::{Choice, Tool, Tools};

/// A call of a tool.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Call {
    /// The tool.
    pub(crate) name: String,
    /// A JSON object.
    pub(crate) arguments: String,
}
