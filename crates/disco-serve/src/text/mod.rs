//! From tokens to the texts that clients get.

mod choice;
mod stops;

pub(crate) use choice::{ChoiceText, Entry, Piece, prompt_entries};
