//! The model's tokens, as the compiler of grammars needs them.

use std::sync::Arc;

use disco_models::text::Text;
use llguidance::toktrie::{ApproximateTokEnv, TokEnv, TokRxInfo, TokTrie};

/// The tokens of a text model with `vocabulary` logits. `None` if no token ends a text.
pub(super) fn environment(text: &Text, ends: &[u32], vocabulary: usize) -> Option<TokEnv> {
    let words: Vec<Vec<u8>> = (0..vocabulary as u32).map(|token| word(text, token)).collect();
    let info = TokRxInfo {
        vocab_size: vocabulary as u32,
        tok_eos: *ends.first()?,
        tok_bos: None,
        tok_pad: None,
        tok_unk: None,
        tok_end_of_turn: None,
    };
    Some(Arc::new(ApproximateTokEnv::new(TokTrie::from(&info, &words).with_eos_tokens(ends))))
}

/// The bytes of a token. Those of a special one begin with a byte that no text has.
fn word(text: &Text, token: u32) -> Vec<u8> {
    let Some(bytes) = text.piece(token) else { return Vec::new() };
    if text.is_left_out(token) { [&[TokTrie::SPECIAL_TOKEN_MARKER][..], &bytes].concat() } else { bytes }
}
