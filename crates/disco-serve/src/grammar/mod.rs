//! Texts that a grammar constrains: JSON schemas, regular expressions, choices, and grammars of Lark's notation, compiled by
//! `llguidance`.
//!
//! A grammar is compiled for the model's tokens, off the engine's thread, to a [`Constraint`]: the engine asks it for the tokens that
//! can follow, and tells it each token of the text.

mod compile;
mod constraint;
mod harmless;
mod source;
mod tokens;
mod turns;
mod words;

#[cfg(any(fuzzing, test))]
pub(crate) use compile::LIMITS;
pub(crate) use compile::{Grammars, Unusable};
pub use constraint::Constraint;
pub(crate) use source::{Grammar, MAX_BYTES, bounded};
pub(crate) use turns::Turns;
