//! Text that grows by tokens.

use candle_core::quantized::gguf_file::{self, Value};
use disco_candle::weights::Weights;

use crate::text::{Decoder, Text};

/// The character that stands for a byte in a byte-level vocabulary.
fn character(byte: u8) -> char {
    let is_printed = |byte: u8| matches!(byte, b'!'..=b'~' | 0xa1..=0xac | 0xae..=0xff);
    if is_printed(byte) {
        return byte.into();
    }
    let unprinted = (0..byte).filter(|byte| !is_printed(*byte)).count() as u32;
    char::from_u32(256 + unprinted).unwrap()
}

/// A tokenizer with one token for each byte and a chat template, in a GGUF file without tensors.
fn bytes(pre: &str, template: &str) -> Text {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("tokenizer.gguf");
    let texts = |texts: Vec<String>| Value::Array(texts.into_iter().map(Value::String).collect());
    let metadata = [
        ("tokenizer.ggml.model", Value::String("gpt2".into())),
        ("tokenizer.ggml.pre", Value::String(pre.into())),
        ("tokenizer.ggml.tokens", texts((0..=255).map(|byte| character(byte).into()).chain(["12".into()]).collect())),
        ("tokenizer.ggml.merges", texts(vec!["1 2".into()])),
        ("tokenizer.chat_template", Value::String(template.into())),
    ];
    let metadata: Vec<_> = metadata.iter().map(|(key, value)| (*key, value)).collect();
    gguf_file::write(&mut std::fs::File::create(&path).unwrap(), &metadata, &[]).unwrap();
    Text::open(&Weights::open(&path).unwrap()).unwrap()
}

#[test]
fn characters_of_several_tokens_come_whole_and_in_order() {
    let text = bytes("gpt-2", "");
    let (expected, mut found) = ("a é€ 🎨\n한", String::new());
    let mut decoder = Decoder::default();
    for byte in expected.bytes() {
        let new = decoder.push(byte.into(), &text).unwrap();
        assert!(!new.contains('\u{fffd}'), "{new:?}");
        found.push_str(&new);
        assert!(expected.starts_with(&found));
    }
    assert_eq!(found, expected);
    assert_eq!(decoder.finish(&text).unwrap(), "");
}

#[test]
fn an_incomplete_character_at_the_end_is_not_lost() {
    let text = bytes("gpt-2", "");
    let mut decoder = Decoder::default();
    assert_eq!(decoder.push(b'x'.into(), &text).unwrap(), "x");
    assert_eq!(decoder.push(0xf0, &text).unwrap(), "");
    assert_eq!(decoder.finish(&text).unwrap(), "\u{fffd}");
}

#[test]
fn the_chat_template_gets_the_messages_and_raw_prompts_do_not_pass_it() {
    let template = "{% for m in messages %}\n    {% if m.role == 'user' %}\n<{{ m.content }}>{% endif %}\n{% endfor %}";
    let text = bytes("gpt-2", template);
    let plain = |tokens: Vec<u32>| tokens.into_iter().map(|token| token as u8 as char).collect::<String>();
    assert_eq!(plain(text.tokens("hi", Some("be kind"), false).unwrap()), "<hi>");
    assert_eq!(plain(text.tokens("hi", None, true).unwrap()), "hi");
    let refusing = bytes("gpt-2", "{{ raise_exception('no messages, please') }}");
    let error = format!("{:#}", refusing.tokens("hi", None, false).unwrap_err());
    assert!(error.contains("--raw") && error.contains("no messages, please"), "{error}");
}
