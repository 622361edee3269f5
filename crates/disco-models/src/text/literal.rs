//! Special tokens that a user writes in a chat: they are text, and only the template's own ones steer the model.

use std::collections::BTreeSet;

use aho_corasick::AhoCorasick;
use tokenizers::normalizers::{Replace, Sequence};
use tokenizers::{
    AddedToken, AddedVocabulary, Model as _, NormalizerWrapper, OffsetType, PreTokenizer as _, Tokenizer,
};

use super::{Because as _, Chat, Why};

/// Begins a mark and an escaped character: one of the code points that Unicode never assigns.
const ESCAPE: &str = "\u{fdd0}";
/// What makes a special token text.
const MARK: &str = "\u{fdd0}\u{fdd1}";
/// `ESCAPE` itself in a marked text.
const ESCAPED: &str = "\u{fdd0}\u{fdd2}";

/// Marks special tokens in the texts of chats, so that they are not special in the rendered chats, and tokenises those.
pub(super) struct Literals {
    specials: AhoCorasick,
    /// The tokenizer's added tokens, without special ones that are found in normalized texts, where the marks are gone.
    added: AddedVocabulary,
    /// Removes the marks before it does what the tokenizer's own normalizer does.
    normalizer: NormalizerWrapper,
}

impl Literals {
    /// # Errors
    /// The tokenizer can't be changed for marked texts.
    pub(super) fn new(tokenizer: &Tokenizer) -> Why<Self> {
        let mut tokens: Vec<(u32, AddedToken)> = tokenizer.get_added_tokens_decoder().into_iter().collect();
        tokens.sort_by_key(|(number, _)| *number);
        let specials = tokens.iter().map(|(_, token)| token).filter(|token| token.special && !token.content.is_empty());
        let specials = AhoCorasick::new(specials.map(|token| &token.content)).because("the special tokens")?;
        let normalizer = normalizer(tokenizer).because("the normalizer")?;
        let (model, mut added) = (tokenizer.get_model(), AddedVocabulary::new());
        let changed = tokens.iter().map(|(_, token)| token.clone().normalized(token.normalized && !token.special));
        added.add_tokens(changed, model, Some(&normalizer)).because("the special tokens")?;
        let has_moved =
            |(number, token): &&(u32, AddedToken)| added.token_to_id(&token.content, model) != Some(*number);
        match tokens.iter().find(has_moved) {
            Some((number, token)) => Err(format!("the token {:?} can't keep its number {number}", token.content)),
            None => Ok(Self { specials, added, normalizer }),
        }
    }

    /// Whether a text of a chat has a special token.
    pub(super) fn are_in(&self, chat: &Chat) -> bool {
        chat.texts().into_iter().any(|text| self.specials.is_match(text))
    }

    /// `text` with a mark after the first character of each special token.
    pub(super) fn mark(&self, text: &str) -> String {
        let text = text.replace(ESCAPE, ESCAPED);
        let begins: BTreeSet<usize> = self.specials.find_overlapping_iter(&text).map(|found| found.start()).collect();
        let (mut marked, mut done) = (String::with_capacity(text.len() + begins.len() * MARK.len()), 0);
        for begin in begins {
            let first = text[begin..].chars().next().map_or(0, char::len_utf8);
            marked.push_str(&text[done..begin + first]);
            marked.push_str(MARK);
            done = begin + first;
        }
        marked + &text[done..]
    }

    /// `text` without the marks.
    pub(super) fn unmark(&self, text: &str) -> String {
        text.replace(MARK, "").replace(ESCAPED, ESCAPE)
    }

    /// The tokens of a rendered chat whose literal texts are marked.
    ///
    /// The tokenizer finds special tokens first, and its normalizer removes the marks from the texts between them. So a text
    /// is tokenised as without marks, whatever comes before it.
    ///
    /// # Errors
    /// The text can't be tokenised.
    pub(super) fn tokens(&self, tokenizer: &Tokenizer, chat: &str) -> tokenizers::Result<Vec<u32>> {
        let mut parts = self.added.extract_and_normalize(Some(&self.normalizer), chat);
        if let Some(pre) = tokenizer.get_pre_tokenizer() {
            pre.pre_tokenize(&mut parts)?;
        }
        tokenizer.get_model().tokenize_in_pretokenized(&mut parts, None)?;
        Ok(parts.into_encoding(None, 0, OffsetType::None)?.get_ids().to_vec())
    }
}

fn normalizer(tokenizer: &Tokenizer) -> tokenizers::Result<NormalizerWrapper> {
    let (unmark, unescape) = (Replace::new(MARK, "")?, Replace::new(ESCAPED, ESCAPE)?);
    let own = tokenizer.get_normalizer().cloned();
    Ok(Sequence::new([unmark.into(), unescape.into()].into_iter().chain(own).collect()).into())
}
