//! The bytes of single tokens.

use std::collections::HashMap;

use tokenizers::{DecoderWrapper, Tokenizer};

/// How the tokens of a vocabulary spell bytes.
#[derive(Debug)]
pub(super) enum Spelling {
    /// Each character of a token stands for a byte.
    Bytes(HashMap<char, u8>),
    /// A token is text, in which `▁` is a space; `<0x0A>` is a byte.
    Pieces,
}

impl Spelling {
    pub(super) fn new(tokenizer: &Tokenizer) -> Self {
        if tokenizer.get_decoder().is_some_and(is_byte_level) { Self::Bytes(characters()) } else { Self::Pieces }
    }

    /// The bytes of a token.
    pub(super) fn bytes(&self, token: &str) -> Vec<u8> {
        match self {
            // As tokenizers decode it: a token with a character that stands for no byte spells itself.
            Self::Bytes(bytes) => {
                let spelled: Option<Vec<u8>> = token.chars().map(|character| bytes.get(&character).copied()).collect();
                spelled.unwrap_or_else(|| token.as_bytes().to_vec())
            }
            Self::Pieces => {
                let byte = token.strip_prefix("<0x").and_then(|rest| rest.strip_suffix('>'));
                match byte.filter(|digits| digits.len() == 2).and_then(|digits| u8::from_str_radix(digits, 16).ok()) {
                    Some(byte) => vec![byte],
                    None => token.replace('▁', " ").into_bytes(),
                }
            }
        }
    }
}

fn is_byte_level(decoder: &DecoderWrapper) -> bool {
    match decoder {
        DecoderWrapper::ByteLevel(_) => true,
        DecoderWrapper::Sequence(sequence) => sequence.get_decoders().iter().any(is_byte_level),
        _ => false,
    }
}

/// The byte for which each character of a byte-level vocabulary stands. Printed characters of Latin-1 stand for
/// themselves; characters from U+0100 on stand for the other bytes in their order (GPT-2's `bytes_to_unicode`).
fn characters() -> HashMap<char, u8> {
    let is_printed = |byte: &u8| matches!(byte, b'!'..=b'~' | 0xa1..=0xac | 0xae..=0xff);
    let (printed, unprinted): (Vec<u8>, Vec<u8>) = (0..=u8::MAX).partition(is_printed);
    let printed = printed.into_iter().map(|byte| (char::from(byte), byte));
    printed.chain(('\u{100}'..).zip(unprinted)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn characters_of_a_byte_level_token_are_bytes() {
        let spelling = Spelling::Bytes(characters());
        assert_eq!(spelling.bytes("ĠtheĊ"), b" the\n");
        assert_eq!(spelling.bytes("âĤ¬"), "€".as_bytes());
        assert_eq!(spelling.bytes("é한"), "é한".as_bytes());
    }

    #[test]
    fn all_bytes_have_a_character() {
        let mut bytes: Vec<u8> = characters().into_values().collect();
        bytes.sort_unstable();
        assert_eq!(bytes, (0..=u8::MAX).collect::<Vec<_>>());
    }

    #[test]
    fn a_piece_is_text_or_a_byte() {
        assert_eq!(Spelling::Pieces.bytes("▁the"), b" the");
        assert_eq!(Spelling::Pieces.bytes("<0xE2>"), [0xe2]);
        assert_eq!(Spelling::Pieces.bytes("<0x1>"), b"<0x1>");
    }
}
