//! Text that grows by tokens.

use candle_core::quantized::gguf_file::{self, Value};
use disco_candle::weights::Weights;
use disco_models::text::{Decoder, Text, TextError};

/// The character that stands for a byte in a byte-level vocabulary.
fn character(byte: u8) -> char {
    let is_printed = |byte: u8| matches!(byte, b'!'..=b'~' | 0xa1..=0xac | 0xae..=0xff);
    if is_printed(byte) {
        return byte.into();
    }
    let unprinted = (0..byte).filter(|byte| !is_printed(*byte)).count() as u32;
    char::from_u32(256 + unprinted).unwrap()
}

/// A tokenizer with one token for each byte, the token 256 for `12`, and the special token 257, `<|end|>`, in a GGUF file
/// without tensors; and a chat template.
fn bytes(pre: &str, template: &str) -> Text {
    let tokens = (0..=255).map(|byte| character(byte).into()).chain(["12".into(), "<|end|>".into()]);
    let kinds = (0..=257).map(|token| Value::I32(if token == 257 { 3 } else { 1 }));
    gguf(&[
        ("tokenizer.ggml.model", Value::String("gpt2".into())),
        ("tokenizer.ggml.pre", Value::String(pre.into())),
        ("tokenizer.ggml.tokens", texts(tokens)),
        ("tokenizer.ggml.token_type", Value::Array(kinds.collect())),
        ("tokenizer.ggml.merges", texts(["1 2".into()])),
        ("tokenizer.ggml.bos_token_id", Value::U32(257)),
        ("tokenizer.chat_template", Value::String(template.into())),
    ])
    .unwrap()
}

fn texts(texts: impl IntoIterator<Item = String>) -> Value {
    Value::Array(texts.into_iter().map(Value::String).collect())
}

/// The text of a GGUF file without tensors.
fn gguf(metadata: &[(&str, Value)]) -> Result<Text, TextError> {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("tokenizer.gguf");
    let metadata: Vec<_> = metadata.iter().map(|(key, value)| (*key, value)).collect();
    gguf_file::write(&mut std::fs::File::create(&path).unwrap(), &metadata, &[]).unwrap();
    Text::open(&Weights::open(&path).unwrap())
}

/// The chat that `template` makes of `prompt`, of which each byte is a token.
fn chat(template: &str, prompt: &str) -> String {
    let tokens = bytes("gpt-2", template).tokens(prompt, None, false).unwrap();
    String::from_utf8(tokens.into_iter().map(|token| token as u8).collect()).unwrap()
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

#[test]
fn a_template_has_the_methods_and_functions_of_transformers() {
    let strip = "{{ messages[0]['content'].strip().split(' ')[1].upper() }}";
    assert_eq!(chat(strip, " a b "), "B");
    let generation = "{%- for m in messages %}{%- generation -%} {{ m.content }} {%- endgeneration %}{% endfor %}";
    assert_eq!(chat(generation, "hi"), "hi");
    assert_eq!(chat("{{ strftime_now('%Y')|int > 2025 }}{{ tools is none }}", "hi"), "TrueTrue");
    let json = "{{ {'b': messages[0].content, 'a': [1, 2.5, none]}|tojson }}";
    assert_eq!(chat(json, "<é'>"), r#"{"b": "<é'>", "a": [1, 2.5, null]}"#);
    assert_eq!(chat("{{ [1, {}]|tojson(indent=2) }}", "hi"), "[\n  1,\n  {}\n]");
}

#[test]
fn a_template_with_a_wrong_format_or_a_huge_indent_is_an_error_or_bounded() {
    let error = bytes("gpt-2", "{{ strftime_now('%Q') }}").tokens("hi", None, false).unwrap_err();
    assert!(format!("{error:#}").contains("strftime_now: \"%Q\" is no format"), "{error:#}");
    assert_eq!(chat("{{ [1]|tojson(indent=1000000000000) }}", "hi").len(), 64 + 5);
}

#[test]
fn a_special_token_that_a_user_writes_is_text_and_one_of_the_template_is_special() {
    let text = bytes("gpt-2", "{% for m in messages %}{{ m.content.strip() }}<|end|>{% endfor %}");
    let literal = |text: &str| text.bytes().map(u32::from).collect::<Vec<_>>();
    let tokens = |prompt| text.tokens(prompt, None, false).unwrap();
    assert_eq!(tokens("a"), [literal("a"), vec![257]].concat());
    assert_eq!(tokens("a<|end|> "), [literal("a<|end|>"), vec![257]].concat());
    let system = text.tokens("b", Some("<|end|><|end|>"), false).unwrap();
    assert_eq!(system, [literal("<|end|><|end|>"), vec![257], literal("b"), vec![257]].concat());
    assert_eq!(text.tokens("a<|end|>", None, true).unwrap(), [literal("a"), vec![257]].concat());
}

#[test]
fn the_pre_tokenizer_cuts_the_text_and_one_that_is_not_known_is_refused() {
    let tokens = |pre| bytes(pre, "").tokens("a12", None, true).unwrap();
    assert_eq!(tokens("gpt-2"), [u32::from(b'a'), 256]);
    assert_eq!(tokens("smollm"), [b'a', b'1', b'2'].map(u32::from));
    // Transformer 3 begins its texts, unless the file says that it does not.
    assert_eq!(tokens("llama-bpe"), [257, u32::from(b'a'), 256]);
    let error = gguf(&[
        ("tokenizer.ggml.model", Value::String("gpt2".into())),
        ("tokenizer.ggml.pre", Value::String("whitespace".into())),
        ("tokenizer.ggml.tokens", texts([])),
    ]);
    let error = format!("{:#}", error.err().unwrap());
    assert!(error.contains("the pre-tokenizer \"whitespace\" (tokenizer.ggml.pre) is not supported"), "{error}");
}

#[test]
fn sentence_piece_merges_by_scores_and_writes_unknown_characters_as_bytes() {
    let pieces = ["<unk>", "<s>", "▁", "a", "b", "▁a", "ab", "▁ab"].map(str::to_owned);
    let scores = [0., 0., -5., -6., -7., -2., -1., -3.].into_iter().chain([0.; 256]);
    let kinds = [2, 3, 1, 1, 1, 1, 1, 1].into_iter().chain([6; 256]);
    let metadata = [
        ("tokenizer.ggml.model", Value::String("llama".into())),
        ("tokenizer.ggml.tokens", texts(pieces.into_iter().chain((0..=255u8).map(|byte| format!("<0x{byte:02X}>"))))),
        ("tokenizer.ggml.scores", Value::Array(scores.map(Value::F32).collect())),
        ("tokenizer.ggml.token_type", Value::Array(kinds.map(Value::I32).collect())),
        ("tokenizer.ggml.bos_token_id", Value::U32(1)),
        ("tokenizer.ggml.unknown_token_id", Value::U32(0)),
    ];
    let text = gguf(&metadata).unwrap();
    // `ab` merges before `▁a` because of its score, and then `▁ab`.
    assert_eq!(text.tokens("ab a", None, true).unwrap(), [1, 7, 5]);
    assert_eq!(text.tokens("aé", None, true).unwrap(), [1, 5, 8 + 0xc3, 8 + 0xa9]);
    let mut decoder = Decoder::default();
    let mut found = String::new();
    for token in [7, 8 + 0xc3, 8 + 0xa9, 5] {
        found.push_str(&decoder.push(token, &text).unwrap());
    }
    assert_eq!(found + &decoder.finish(&text).unwrap(), "abé a");
}

#[test]
fn the_default_of_several_named_templates_is_used_and_a_file_that_is_something_else_is_named() {
    let folder = tempfile::tempdir().unwrap();
    let write = |name: &str, text: &str| std::fs::write(folder.path().join(name), text).unwrap();
    candle_core::safetensors::save(
        &std::collections::HashMap::<&str, candle_core::Tensor>::new(),
        folder.path().join("model.safetensors"),
    )
    .unwrap();
    write(
        "tokenizer.json",
        r#"{"version": "1.0", "pre_tokenizer": {"type": "Whitespace"},
            "truncation": {"max_length": 1, "strategy": "LongestFirst", "stride": 0, "direction": "Right"},
            "model": {"type": "WordLevel", "vocab": {"hi": 0, "x": 1}, "unk_token": "x"}}"#,
    );
    let open = || Text::open(&Weights::open(folder.path()).unwrap());
    // A limit of the training does not cut a prompt.
    assert_eq!(open().unwrap().tokens("hi hi x", None, true).unwrap(), [0, 0, 1]);
    write(
        "tokenizer_config.json",
        r#"{"chat_template": [{"name": "tool_use", "template": "x"}, {"name": "default", "template": "hi"}]}"#,
    );
    assert_eq!(open().unwrap().tokens("x", None, false).unwrap(), [0]);
    write("tokenizer_config.json", r#"{"chat_template": [{"name": "a"}, {"name": "b"}]}"#);
    let error = format!("{:#}", open().err().unwrap());
    assert!(error.contains(r#"has the templates "a", "b", and none that is named "default""#), "{error}");
    write("tokenizer_config.json", r#"{"chat_template": 7}"#);
    assert!(format!("{:#}", open().err().unwrap()).contains("neither a text nor a list"));
    write("tokenizer.json", "version https://git-lfs.github.com/spec/v1\n");
    assert!(format!("{:#}", open().err().unwrap()).contains("tokenizer.json: it is a pointer of Git LFS"));
}
