//! The text of one choice: tokens decoded, cut at stop strings, and paired with their logprobs.

use std::collections::VecDeque;

use disco_models::text::{Decoder, Text, TextError};

use super::stops::{Decided, Stops};
use crate::engine::Token;

/// A token of a list of logprobs.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Entry {
    /// The token, with its logprob and the most probable ones.
    pub(crate) token: Token,
    /// Where its text begins, in characters from the beginning of the choice's text.
    pub(crate) offset: usize,
    /// The same in bytes from the beginning of the generated text.
    start: usize,
}

/// The next part of a text, ready to be sent.
#[derive(Debug, Default, PartialEq)]
pub(crate) struct Piece {
    pub(crate) text: String,
    /// Tokens whose text begins in `text` or in an earlier part.
    pub(crate) entries: Vec<Entry>,
    /// The stop string that follows.
    pub(crate) stop: Option<String>,
}

/// The generated text of a choice.
#[derive(Debug)]
pub(crate) struct ChoiceText {
    decoder: Decoder,
    stops: Stops,
    /// Stop strings that end in the text of so many tokens do not count.
    min_tokens: usize,
    has_logprobs: bool,
    /// Number of tokens.
    tokens: usize,
    /// The token that ends the text, and has none itself.
    end: Option<Token>,
    /// Length of the decoded text, in bytes.
    decoded: usize,
    /// The same in characters, with those before the generated text.
    characters: usize,
    /// Length of the text that was shown, in bytes.
    shown: usize,
    /// Entries that were not shown yet.
    pending: VecDeque<Entry>,
}

impl ChoiceText {
    /// Shows some special tokens, too.
    pub(crate) fn keeping(mut self, specials: Vec<u32>) -> Self {
        self.decoder = Decoder::keeping(specials);
        self
    }

    /// A text that ends before one of these stop strings, but has `min_tokens` tokens.
    pub(crate) fn new(stops: Vec<String>, min_tokens: usize, has_logprobs: bool) -> Self {
        Self {
            decoder: Decoder::default(),
            stops: Stops::new(stops),
            min_tokens,
            has_logprobs,
            tokens: 0,
            end: None,
            decoded: 0,
            characters: 0,
            shown: 0,
            pending: VecDeque::new(),
        }
    }

    /// Puts `characters` of a prompt before the text.
    pub(crate) fn begin_after(&mut self, characters: usize) {
        self.characters = characters;
    }

    /// Adds a token.
    ///
    /// # Errors
    /// It can't be decoded.
    pub(crate) fn push(&mut self, token: Token, text: &Text) -> Result<Piece, TextError> {
        let new = self.decoder.push(token.id, text)?;
        self.tokens += 1;
        if self.has_logprobs {
            self.pending.push_back(Entry { token, offset: self.characters, start: self.decoded });
        }
        Ok(self.decide(&new))
    }

    /// Adds the token that ends the text, of which only the logprobs are told.
    pub(crate) fn end(&mut self, token: Token) {
        self.end = Some(token).filter(|_| self.has_logprobs);
    }

    /// The text that was held back, after the last token.
    ///
    /// # Errors
    /// The last tokens can't be decoded.
    pub(crate) fn finish(&mut self, text: &Text) -> Result<Piece, TextError> {
        let new = self.decoder.finish(text)?;
        let mut piece = self.decide(&new);
        if piece.stop.is_none() {
            piece.text.push_str(&self.stops.flush());
            piece.entries.extend(self.pending.drain(..));
            let entry = |token| Entry { token, offset: self.characters, start: self.decoded };
            piece.entries.extend(self.end.take().map(entry));
        }
        Ok(piece)
    }

    fn decide(&mut self, new: &str) -> Piece {
        self.decoded += new.len();
        self.characters += new.chars().count();
        let Decided { text, stop } = self.stops.push(new, self.tokens > self.min_tokens);
        self.shown += text.len();
        let shown = self.pending.iter().take_while(|entry| entry.start < self.shown).count();
        Piece { text, entries: self.pending.drain(..shown).collect(), stop }
    }
}

/// The tokens of a prompt with the places of their texts. Tokens that the tokenizer puts around a text have none.
///
/// # Errors
/// The tokens can't be decoded.
pub(crate) fn prompt_entries(tokens: Vec<Token>, text: &Text) -> Result<Vec<Entry>, TextError> {
    let inner = text.inner(&tokens.iter().map(|token| token.id).collect::<Vec<_>>());
    let (mut decoder, mut offset, mut start) = (Decoder::with_specials(), 0, 0);
    let mut entries = Vec::with_capacity(tokens.len());
    for (place, token) in tokens.into_iter().enumerate() {
        let new = if inner.contains(&place) { decoder.push(token.id, text)? } else { String::new() };
        entries.push(Entry { token, offset, start });
        offset += new.chars().count();
        start += new.len();
    }
    Ok(entries)
}
