//! The text of a growing sequence of tokens.

use super::{Text, TextError};

/// The text of a growing sequence of tokens: the parts together are the text of all tokens. A character whose bytes several
/// tokens have comes with its last byte.
#[derive(Debug, Default)]
pub struct Decoder {
    keeps_specials: bool,
    /// Special tokens that are written, if not all are.
    kept: Vec<u32>,
    /// The last tokens. The first `done` of them were returned as text, and influence the text of later ones.
    tokens: Vec<u32>,
    done: usize,
    /// The bytes at the end of the tokens that begin a character.
    partial: Vec<u8>,
}

impl Decoder {
    /// A decoder that writes special tokens, too.
    pub fn with_specials() -> Self {
        Self { keeps_specials: true, ..Self::default() }
    }

    /// A decoder that writes some special tokens, too.
    pub fn keeping(specials: Vec<u32>) -> Self {
        Self { kept: specials, ..Self::default() }
    }

    /// Adds a token. Returns the text that is complete with it.
    ///
    /// # Errors
    /// The tokens can't be decoded.
    pub fn push(&mut self, token: u32, text: &Text) -> Result<String, TextError> {
        if !self.keeps_specials && text.is_left_out(token) && !self.kept.contains(&token) {
            return Ok(String::new());
        }
        self.tokens.push(token);
        self.partial.extend(text.piece(token).unwrap_or_default());
        self.partial.drain(..self.partial.len() - incomplete(&self.partial).len());
        if self.partial.is_empty() { self.rest(text) } else { Ok(String::new()) }
    }

    /// The text of the last tokens, even if a character is incomplete.
    ///
    /// # Errors
    /// The tokens can't be decoded.
    pub fn finish(&mut self, text: &Text) -> Result<String, TextError> {
        self.partial.clear();
        self.rest(text)
    }

    /// The text of the tokens that have not been returned as text.
    fn rest(&mut self, text: &Text) -> Result<String, TextError> {
        let skips_specials = !self.keeps_specials && self.kept.is_empty();
        let decoded = |tokens: &[u32]| text.decoded(tokens, skips_specials);
        let (old, all) = (decoded(&self.tokens[..self.done])?, decoded(&self.tokens)?);
        let new = match all.strip_prefix(&old) {
            Some(new) => new.to_owned(),
            // The new tokens change the text of those before, which has been returned.
            None => decoded(&self.tokens[self.done..])?,
        };
        // Tokens without text can influence that of later ones: a space at the beginning is left out once.
        if !new.is_empty() {
            self.tokens.drain(..self.done);
            self.done = self.tokens.len();
        }
        Ok(new)
    }
}

/// The bytes at the end that begin a character and lack its last ones.
fn incomplete(bytes: &[u8]) -> &[u8] {
    let end = bytes.utf8_chunks().last().map_or(&[][..], |chunk| chunk.invalid());
    if std::str::from_utf8(end).is_err_and(|error| error.error_len().is_none()) { end } else { &[] }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_beginning_of_a_character_is_incomplete_and_invalid_bytes_are_not() {
        let euro = "€".as_bytes();
        assert_eq!(incomplete(&[b"a", &euro[..2]].concat()), &euro[..2]);
        assert_eq!(incomplete(&[&euro[1..], &euro[..1]].concat()), &euro[..1]);
        assert_eq!(incomplete(&[b"\xff", &"🎨".as_bytes()[..3]].concat()), &"🎨".as_bytes()[..3]);
        for complete in [&b""[..], b"a", euro, &euro[1..], b"\xff", b"\xf0a", b"\xe2\x82\xff"] {
            assert_eq!(incomplete(complete), b"", "{complete:x?}");
        }
    }
}
