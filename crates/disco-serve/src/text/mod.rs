//! From tokens to the texts that clients get.

mod choice;
mod reasoning;
mod stops;

pub(crate) use choice::{ChoiceText, Entry, Piece, prompt_entries};
pub(crate) use reasoning::{Marks, Reasoning};
pub(crate) use stops::undecided;
