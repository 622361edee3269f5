//! Texts of tokens, for all kinds of vocabularies and all ways to cut a text into tokens.

use disco_candle::weights::Weights;
use disco_models::text::{Decoder, Text};
use proptest::prelude::*;
use serde_json::{Value as Json, json};

use super::text::{character, folder};

/// How the tokens of a vocabulary spell a text.
#[derive(Clone, Copy, Debug)]
enum Kind {
    /// GPT-2's: a token has any bytes.
    ByteLevel,
    /// Llama 2's: pieces of text, and a token for each byte. One space at the beginning of a text is left out.
    ByteFallback,
    /// T5's: the same, without tokens for bytes.
    Metaspace,
}

impl Kind {
    fn decoder(self) -> Json {
        match self {
            Self::ByteLevel => {
                json!({"type": "ByteLevel", "add_prefix_space": true, "trim_offsets": true, "use_regex": true})
            }
            Self::ByteFallback => json!({"type": "Sequence", "decoders": [
                {"type": "Replace", "pattern": {"String": "▁"}, "content": " "}, {"type": "ByteFallback"}, {"type": "Fuse"},
                {"type": "Strip", "content": " ", "start": 1, "stop": 0},
            ]}),
            Self::Metaspace => {
                json!({"type": "Metaspace", "replacement": "▁", "prepend_scheme": "always", "split": true})
            }
        }
    }

    /// The pieces of a text that is cut after each of `ends`, some of the bytes from 0 to its length.
    fn pieces(self, text: &str, ends: &[usize]) -> Vec<String> {
        let bounds: Vec<usize> = match self {
            Self::ByteLevel => ends.to_vec(),
            _ => ends.iter().copied().filter(|end| text.is_char_boundary(*end)).collect(),
        };
        let bounds = [vec![0], bounds, vec![text.len()]].concat();
        let parts = bounds.windows(2).filter(|bounds| bounds[0] < bounds[1]);
        let parts = parts.map(|bounds| (bounds[0], &text.as_bytes()[bounds[0]..bounds[1]]));
        let spelled = parts.flat_map(|(start, part)| match self {
            Self::ByteLevel => vec![byte_level(part)],
            // Some parts have a token, and the others one for each byte.
            Self::ByteFallback if start % 2 == 1 => part.iter().map(|byte| format!("<0x{byte:02X}>")).collect(),
            _ => vec![std::str::from_utf8(part).unwrap().replace(' ', "▁")],
        });
        spelled.collect()
    }
}

fn byte_level(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| character(*byte)).collect()
}

/// A tokenizer with these tokens, of which the first one is special.
fn tokenizer(kind: Kind, pieces: &[String]) -> (Text, Vec<u32>) {
    let mut vocabulary = serde_json::Map::from_iter([("<s>".to_owned(), json!(0))]);
    for piece in pieces {
        let next = vocabulary.len();
        vocabulary.entry(piece.clone()).or_insert_with(|| json!(next));
    }
    let tokens = pieces.iter().map(|piece| vocabulary[piece].as_u64().unwrap() as u32).collect();
    let special = json!({"id": 0, "content": "<s>", "single_word": false, "lstrip": false, "rstrip": false,
                         "normalized": false, "special": true});
    let json = json!({
        "version": "1.0", "added_tokens": [special], "decoder": kind.decoder(),
        "model": {"type": "BPE", "vocab": vocabulary, "merges": [], "byte_fallback": matches!(kind, Kind::ByteFallback)},
    });
    let folder = folder(&json, &json!({}));
    (Text::open(&Weights::open(folder.path()).unwrap()).unwrap(), tokens)
}

/// The parts of a text that grows by tokens, one for each token and one for its end.
fn parts(text: &Text, tokens: &[u32]) -> Vec<String> {
    let mut decoder = Decoder::default();
    let mut parts: Vec<_> = tokens.iter().map(|token| decoder.push(*token, text).unwrap()).collect();
    parts.push(decoder.finish(text).unwrap());
    parts
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(400) })]

    #[test]
    fn a_text_that_grows_is_the_text_of_its_tokens_and_holds_back_only_incomplete_characters(
        text in "[ aé客价😀€]{0,12}",
        mut ends in prop::collection::vec(0usize..49, 0..20),
        specials in prop::collection::vec(0usize..20, 0..4),
        kind in prop::sample::select(vec![Kind::ByteLevel, Kind::ByteFallback, Kind::Metaspace]),
    ) {
        ends.retain(|end| *end <= text.len());
        ends.sort_unstable();
        let (tokenizer, mut tokens) = tokenizer(kind, &kind.pieces(&text, &ends));
        for place in specials {
            tokens.insert(place.min(tokens.len()), 0);
        }
        let parts = parts(&tokenizer, &tokens);
        prop_assert_eq!(parts.concat(), tokenizer.decode(&tokens).unwrap());
        for count in 0..=tokens.len() {
            let whole = tokenizer.decode(&tokens[..count]).unwrap();
            let told = parts[..count].concat();
            prop_assert!(!told.contains('\u{fffd}'), "{told:?}");
            prop_assert!(whole.ends_with('\u{fffd}') || told == whole, "{told:?} of {whole:?}");
        }
    }

    #[test]
    fn invalid_bytes_are_replaced_as_the_tokenizer_does_it(
        bytes in prop::collection::vec(prop::sample::select(vec![b'a', 0x82, 0xac, 0xe2, 0xf0, 0x9f, 0xff]), 0..16),
        lengths in prop::collection::vec(1usize..4, 16),
    ) {
        let mut rest = &bytes[..];
        let mut pieces = Vec::new();
        for length in lengths {
            let (piece, others) = rest.split_at(length.min(rest.len()));
            pieces.extend(Some(byte_level(piece)).filter(|piece| !piece.is_empty()));
            rest = others;
        }
        let (tokenizer, tokens) = tokenizer(Kind::ByteLevel, &pieces);
        prop_assert_eq!(parts(&tokenizer, &tokens).concat(), String::from_utf8_lossy(&bytes));
    }
}

/// A character whose tokens have parts of its neighbours, and one after a token without text.
#[test]
fn characters_that_share_tokens_or_follow_a_token_without_text_come_whole() {
    let text = "X: 客单价格表示数";
    let ends: Vec<usize> = [3, 4].into_iter().chain((7..text.len()).step_by(3)).collect();
    let (tokenizer, tokens) = tokenizer(Kind::ByteLevel, &Kind::ByteLevel.pieces(text, &ends));
    assert_eq!(tokens.len(), 9);
    assert_eq!(parts(&tokenizer, &tokens).concat(), text);

    let bytes = "😀".bytes().map(|byte| format!("<0x{byte:02X}>"));
    let pieces: Vec<_> = ["▁".to_owned()].into_iter().chain(bytes).chain(["▁Hi".to_owned()]).collect();
    let (tokenizer, tokens) = self::tokenizer(Kind::ByteFallback, &pieces);
    assert_eq!(parts(&tokenizer, &tokens), ["", "", "", "", "😀", " Hi", ""]);
}
