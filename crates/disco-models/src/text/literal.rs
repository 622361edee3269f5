//! Special tokens that a user writes in a chat: they are text, and only the template's own ones steer the model.

use tokenizers::{AddedToken, Tokenizer};

use super::Why;

/// A writer of literal texts for one chat: it marks special tokens in them, so that they are not special in the rendered
/// chat.
pub(super) struct Literals {
    /// The special tokens, the longest first.
    specials: Vec<(u32, AddedToken)>,
    /// A character that no text has: one of the code points that Unicode never assigns.
    mark: char,
}

impl Literals {
    /// Literals for `texts`; `None` if none of them has a special token.
    pub(super) fn new(tokenizer: &Tokenizer, texts: &[&str]) -> Option<Self> {
        let added = tokenizer.get_added_tokens_decoder().into_iter();
        let mut specials: Vec<_> = added.filter(|(_, token)| token.special && !token.content.is_empty()).collect();
        specials.sort_by_key(|(number, token)| (std::cmp::Reverse(token.content.len()), *number));
        let is_written = |token: &AddedToken| texts.iter().any(|text| text.contains(&token.content));
        if !specials.iter().any(|(_, token)| is_written(token)) {
            return None;
        }
        let mark = ('\u{fdd0}'..='\u{fdef}').find(|mark| !texts.iter().any(|text| text.contains(*mark)))?;
        Some(Self { specials, mark })
    }

    /// `text` with a mark after the first character of each special token.
    pub(super) fn mark(&self, text: &str) -> String {
        let mut marked = String::new();
        let mut rest = text;
        while let Some(first) = rest.chars().next() {
            let (head, tail) = rest.split_at(first.len_utf8());
            marked.push_str(head);
            if self.specials.iter().any(|(_, token)| rest.starts_with(&token.content)) {
                marked.push(self.mark);
            }
            rest = tail;
        }
        marked
    }

    /// The tokens of a rendered chat whose literal texts are marked.
    ///
    /// # Errors
    /// A piece of the text can't be tokenised.
    pub(super) fn tokens(&self, tokenizer: &Tokenizer, chat: &str) -> Why<Vec<u32>> {
        let mut plain = tokenizer.clone();
        plain.set_encode_special_tokens(true);
        let mut tokens = Vec::new();
        let (mut rest, mut strips) = (chat, false);
        loop {
            let found = self.specials.iter().filter_map(|special| Some((rest.find(&special.1.content)?, special)));
            // At one position, the longest, which comes first.
            let next = found.min_by_key(|(at, _)| *at);
            let mut piece = next.map_or(rest, |(at, _)| &rest[..at]);
            if strips {
                piece = piece.trim_start();
            }
            if next.is_some_and(|(_, (_, token))| token.lstrip) {
                piece = piece.trim_end();
            }
            let piece = piece.replace(self.mark, "");
            if !piece.is_empty() {
                let encoding = plain.encode(piece.as_str(), false).map_err(|error| format!("{piece:?}: {error}"))?;
                tokens.extend_from_slice(encoding.get_ids());
            }
            let Some((at, (number, token))) = next else { return Ok(tokens) };
            tokens.push(*number);
            strips = token.rstrip;
            rest = rest.get(at + token.content.len()..).ok_or("a special token ends inside of a character")?;
        }
    }
}
