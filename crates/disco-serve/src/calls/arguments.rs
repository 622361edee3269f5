//! Calls of which the arguments grow.

use super::elements::Elements;
use super::json::Scan;
use super::pairs::Pairs;
use super::reading::Taken;

/// The arguments of a call, of which a part has come.
#[derive(Debug)]
pub(super) enum Arguments {
    /// JSON.
    Json(Scan),
    /// An element for each argument.
    Elements(Elements),
    /// Gemma's notation.
    Pairs(Pairs),
}

/// A call whose arguments begin.
#[derive(Debug)]
pub(super) struct Head {
    pub(super) name: String,
    /// The bytes before the arguments, or of the whole call.
    pub(super) length: usize,
    pub(super) arguments: Known,
}

/// What is known of the arguments of a call.
#[derive(Debug)]
pub(super) enum Known {
    /// They follow.
    Follow(Arguments),
    /// They are this text, a JSON object.
    Are(String),
}

impl Arguments {
    /// Takes what is decided of the rest of the arguments.
    pub(super) fn take(&mut self, text: &str) -> Taken {
        match self {
            Self::Json(scan) => {
                let mut json = String::new();
                let (length, is_end) = scan.compact(text, &mut json).within(text);
                Taken { json, length, is_end }
            }
            Self::Elements(elements) => elements.take(text),
            Self::Pairs(pairs) => pairs.take(text),
        }
    }
}
