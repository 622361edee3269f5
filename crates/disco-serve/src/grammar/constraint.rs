//! A grammar beside the text that it constrains.

use std::fmt;

use disco_models::serving::Mask;
use llguidance::Matcher;

use super::words::plain;

/// Where a text is in its grammar.
#[derive(Clone)]
pub struct Constraint(Matcher);

impl Constraint {
    pub(crate) fn new(matcher: Matcher) -> Self {
        Self(matcher)
    }

    /// The tokens that can follow. Behind a complete text, these are its ends.
    ///
    /// # Errors
    /// It takes too much work, or no token can follow.
    pub fn mask(&mut self) -> Result<Mask, String> {
        let tokens = self.0.compute_mask_or_eos().map_err(|error| plain(&error.to_string()))?;
        if tokens.num_set() == 0 {
            return Err("no token can follow".to_owned());
        }
        let bytes = tokens.as_slice().iter().flat_map(|word| word.to_le_bytes());
        Ok(Mask::of_bits(bytes.take(tokens.len().div_ceil(8)).collect()))
    }

    /// Adds a token of the text.
    ///
    /// # Errors
    /// It can't follow.
    pub fn consume(&mut self, token: u32) -> Result<(), String> {
        self.0.consume_token(token).map_err(|error| plain(&error.to_string()))
    }
}

impl fmt::Debug for Constraint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Constraint").field("state", &self.0.stop_reason()).finish_non_exhaustive()
    }
}
