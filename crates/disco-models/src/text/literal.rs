//! Special tokens that a user writes in a chat: they are text, and only the template's own ones steer the model.

use tokenizers::normalizers::{Replace, Sequence};
use tokenizers::{AddedToken, NormalizerWrapper, Tokenizer};

use super::{Chat, Why};

/// A writer of literal texts for one chat: it marks special tokens in them, so that they are not special in the rendered
/// chat.
pub(super) struct Literals {
    /// The special tokens.
    specials: Vec<AddedToken>,
    /// A character that no text has: one of the code points that Unicode never assigns.
    mark: char,
}

impl Literals {
    /// Literals for a chat; `None` if none of its texts has a special token.
    pub(super) fn new(tokenizer: &Tokenizer, chat: &Chat) -> Option<Self> {
        let texts = chat.texts();
        let added = tokenizer.get_added_tokens_decoder().into_values();
        let specials: Vec<_> = added.filter(|token| token.special && !token.content.is_empty()).collect();
        let is_written = |token: &AddedToken| texts.iter().any(|text| text.contains(&token.content));
        if !specials.iter().any(is_written) {
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
            if self.specials.iter().any(|token| rest.starts_with(&token.content)) {
                marked.push(self.mark);
            }
            rest = tail;
        }
        marked
    }

    /// `text` without the marks.
    pub(super) fn unmark(&self, text: &str) -> String {
        text.replace(self.mark, "")
    }

    /// The tokens of a rendered chat whose literal texts are marked.
    ///
    /// The tokenizer finds special tokens first, and its normalizer removes the marks from the texts between them. So a text
    /// is tokenised as without marks, whatever comes before it.
    ///
    /// # Errors
    /// The text can't be tokenised.
    pub(super) fn tokens(&self, tokenizer: &Tokenizer, chat: &str) -> Why<Vec<u32>> {
        let tokenizer = self.tokenizer(tokenizer).map_err(|error| error.to_string())?;
        let encoding = tokenizer.encode(chat, false).map_err(|error| error.to_string())?;
        Ok(encoding.get_ids().to_vec())
    }

    /// The tokenizer with a normalizer that removes marks before any other, and without special tokens that are found in
    /// normalized texts, where the marks are gone.
    fn tokenizer(&self, tokenizer: &Tokenizer) -> tokenizers::Result<Tokenizer> {
        let mut changed = Tokenizer::new(tokenizer.get_model().clone());
        let unmark = Replace::new(self.mark.to_string(), "")?;
        let normalizers = [unmark.into()].into_iter().chain(tokenizer.get_normalizer().cloned());
        changed.with_normalizer(Some(NormalizerWrapper::from(Sequence::new(normalizers.collect()))))?;
        changed.with_pre_tokenizer(tokenizer.get_pre_tokenizer().cloned());
        let mut added: Vec<_> = tokenizer.get_added_tokens_decoder().into_iter().collect();
        added.sort_by_key(|(number, _)| *number);
        for (number, token) in added {
            let content = token.content.clone();
            let token = if token.special { token.normalized(false) } else { token };
            changed.add_tokens([token])?;
            if changed.token_to_id(&content) != Some(number) {
                return Err(format!("the special token {content:?} can't keep its number {number}").into());
            }
        }
        Ok(changed)
    }
}
