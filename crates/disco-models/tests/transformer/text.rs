//! Text that grows by tokens.

use candle_core::quantized::gguf_file::{self, Value};
use disco_candle::weights::Weights;
use disco_models::text::{Chat, Decoder, Text, TextError};
use serde_json::json;

/// The character that stands for a byte in a byte-level vocabulary.
pub(crate) fn character(byte: u8) -> char {
    let is_printed = |byte: u8| matches!(byte, b'!'..=b'~' | 0xa1..=0xac | 0xae..=0xff);
    if is_printed(byte) {
        return byte.into();
    }
    let unprinted = (0..byte).filter(|byte| !is_printed(*byte)).count() as u32;
    char::from_u32(256 + unprinted).unwrap()
}

/// A tokenizer with one token for each byte, the token 256 for `12`, and the special token 257, `<|end|>`, in a GGUF file
/// without tensors; and a chat template.
pub(crate) fn bytes(pre: &str, template: &str) -> Text {
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
fn the_text_of_invalid_bytes_is_not_held_back_for_ever() {
    let text = bytes("gpt-2", "");
    let mut decoder = Decoder::default();
    let mut found = String::new();
    for byte in [0xff, 0xff, 0xff, 0xff, b'a'] {
        found.push_str(&decoder.push(byte.into(), &text).unwrap());
    }
    assert_eq!(found, "\u{fffd}\u{fffd}\u{fffd}\u{fffd}a");
    for byte in [0xffu8, 0xff, 0xff, 0xe2, 0x82, 0xac] {
        found.push_str(&decoder.push(byte.into(), &text).unwrap());
    }
    assert!(found.ends_with("a\u{fffd}\u{fffd}\u{fffd}€"), "{found:?}");
    assert_eq!(decoder.finish(&text).unwrap(), "");
}

#[test]
fn a_token_has_the_bytes_that_it_spells() {
    let text = bytes("gpt-2", "");
    assert_eq!(text.piece(0xe2), Some(vec![0xe2]));
    assert_eq!(text.piece(256), Some(b"12".to_vec()));
    assert_eq!(text.piece(257), Some(b"<|end|>".to_vec()));
    assert_eq!(text.piece(258), None);
    assert_eq!(text.encode("12<|end|>", false).unwrap(), [256, 257]);
    assert_eq!(text.decode(&[256, 257, 0xe2]).unwrap(), "12\u{fffd}");
    assert_eq!(text.decode_with_specials(&[256, 257, 0xe2]).unwrap(), "12<|end|>\u{fffd}");
    assert_eq!((text.special("bos_token"), text.special("eos_token")), (Some("<|end|>"), None));
}

#[test]
fn a_template_that_runs_for_too_long_is_ended() {
    let endless = "{% for a in range(99999) %}{% for b in range(99999) %}{% set c = b %}{% endfor %}{% endfor %}";
    let error = bytes("gpt-2", endless).tokens("hi", None, false).unwrap_err();
    assert!(format!("{error:#}").contains("fuel"), "{error:#}");
}

#[test]
fn the_chat_template_gets_the_messages_and_raw_prompts_do_not_pass_it() {
    let template = "{% for m in messages %}\n    {% if m.role == 'user' %}\n<{{ m.content }}>{% endif %}\n{% endfor %}";
    let text = bytes("gpt-2", template);
    let plain = |tokens: Vec<u32>| tokens.into_iter().map(|token| token as u8 as char).collect::<String>();
    assert_eq!(plain(text.tokens("hi", None, false).unwrap()), "<hi>");
    let error = format!("{:#}", text.tokens("hi", Some("be kind"), false).unwrap_err());
    assert!(error.contains("the role \"system\", which the chat template of the model leaves out; `--raw`"), "{error}");
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
fn a_special_token_is_text_beside_any_other_characters() {
    let text = bytes("gpt-2", "{% for m in messages %}{{ m.content }}<|end|>{% endfor %}");
    // Code points that no text has are often used as marks.
    let strange: String = ('\u{fdd0}'..='\u{fdef}').chain(['\u{fdd0}', '\u{fdd1}']).collect();
    for prompt in
        [format!("<|end|>{strange}<|end|>"), "<\u{fdd0}\u{fdd1}|end|>".to_owned(), format!("{strange}<|end|>")]
    {
        let literal = prompt.bytes().map(u32::from).chain([257]).collect::<Vec<_>>();
        assert_eq!(text.tokens(&prompt, None, false).unwrap(), literal, "{prompt:?}");
    }
}

#[test]
fn a_prompt_far_beyond_a_number_of_tokens_is_recognised_by_its_beginning() {
    let text = bytes("gpt-2", "{% for m in messages %}{{ m.content }}{% endfor %}");
    let long = "a".repeat(100_000);
    assert!(text.exceeds(&long, 10_000).unwrap());
    assert!(text.chat_exceeds(&Chat::with_prompt(&long, None), 10_000).unwrap());
    // These have as many tokens as bytes, which is to be found by tokenising them.
    for (prompt, tokens) in [("a", 0), (&long[..800], 100), (&long, 12_500)] {
        assert!(!text.exceeds(prompt, tokens).unwrap(), "{tokens}");
        assert!(!text.chat_exceeds(&Chat::with_prompt(prompt, None), tokens).unwrap());
    }
    // Half as many tokens as bytes.
    let twelves = "12".repeat(50_000);
    assert_eq!(text.encode(&twelves, false).unwrap().len(), 50_000);
    assert!(text.exceeds(&twelves, 12_000).unwrap());
    // So few that a cut could have made them.
    assert!(!text.exceeds(&"12".repeat(200), 40).unwrap());
}

/// A template in the style of several families: the tools as JSON, calls and results of tools, documents, a variable.
const TOOLS: &str = "\
{%- if tools %}<tools>{% for tool in tools %}{{ tool | tojson }}\n{% endfor %}</tools>{% endif %}
{%- for document in documents or [] %}[{{ loop.index0 }}: {{ document['title'] }}]{% endfor %}
{%- for m in messages %}<{{ m.role }}>
    {%- if m.tool_calls %}{% for call in m.tool_calls %}{% set f = call.function %}
        {{- f.name }}({% for key, value in f.arguments|items %}{{ key }}={{ value }}{{ '' if loop.last else ', ' }}{% endfor %})
    {%- endfor %}{% else %}{{ m.content | trim }}{% endif %}
{%- endfor %}
{%- if add_generation_prompt %}<assistant>{% if enable_thinking is defined and not enable_thinking %}no{% endif %}{% endif %}";

#[test]
fn a_chat_has_messages_tools_documents_and_variables() {
    let text = bytes("gpt-2", TOOLS);
    let mut chat = Chat::new(vec![json!({"role": "user", "content": " Oslo? "})]);
    assert_eq!(text.render(&chat).unwrap(), "<user>Oslo?<assistant>");
    chat.messages.push(json!({"role": "assistant", "content": null, "tool_calls": [
        {"function": {"name": "weather", "arguments": {"city": "Oslo", "area": null, "days": 2, "deep": true}}}]}));
    chat.messages.push(json!({"role": "tool", "content": "rain"}));
    chat.tools = Some(vec![json!({"type": "function", "function": {"name": "weather", "a": ["<é>", 0.5]}})]);
    chat.documents = Some(vec![json!({"title": "Oslo", "text": ""})]);
    chat.variables.insert("enable_thinking".into(), json!(false));
    // What transformers 5.17 renders.
    let expected = "<tools>{\"type\": \"function\", \"function\": {\"name\": \"weather\", \"a\": [\"<é>\", 0.5]}}\n</tools>\
                    [0: Oslo]<user>Oslo?<assistant>weather(city=Oslo, area=None, days=2, deep=True)<tool>rain<assistant>no";
    assert_eq!(text.render(&chat).unwrap(), expected);
    let tokens = text.chat(&chat).unwrap();
    assert_eq!(tokens, expected.bytes().map(u32::from).collect::<Vec<_>>());
    chat.add_generation_prompt = false;
    assert!(text.render(&chat).unwrap().ends_with("<tool>rain"));
}

#[test]
fn tools_have_the_name_that_the_template_of_smollm3_knows() {
    let text =
        bytes("gpt-2", "{% if xml_tools %}{% for tool in xml_tools[:] %}{{ tool | tojson }}{% endfor %}{% endif %};");
    let mut chat = Chat::new(vec![json!({"role": "user", "content": "Oslo?"})]);
    assert_eq!(text.render(&chat).unwrap(), ";");
    chat.tools = Some(vec![json!({"name": "weather"})]);
    assert_eq!(text.render(&chat).unwrap(), "{\"name\": \"weather\"};");
    chat.variables.insert("xml_tools".into(), json!([{"name": "time"}]));
    assert_eq!(text.render(&chat).unwrap(), "{\"name\": \"time\"};");
}

#[test]
fn special_tokens_in_tools_and_messages_of_all_roles_are_text() {
    let text = bytes("gpt-2", "{{ tools|tojson }}{% for m in messages %}{{ m.content }}<|end|>{% endfor %}");
    let mut chat = Chat::new(vec![json!({"role": "tool", "content": "<|end|>"})]);
    chat.tools = Some(vec![json!({"<|end|>": ["<|end|>"]})]);
    let tokens = text.chat(&chat).unwrap();
    let literal = r#"[{"<|end|>": ["<|end|>"]}]<|end|>"#;
    assert_eq!(tokens, literal.bytes().map(u32::from).chain([257]).collect::<Vec<_>>());
    let mut refused = Chat::with_prompt("a<|end|>", None);
    refused.add_generation_prompt = false;
    let refusing = bytes("gpt-2", "{{ raise_exception(messages[0].content) }}");
    let error = refusing.chat(&refused).unwrap_err().to_string();
    assert!(error.contains("can't be turned into a text") && error.contains("a<|end|>"), "{error}");
}

/// A folder with the tokenizer of `json` and no tensors.
pub(crate) fn folder(json: &serde_json::Value, config: &serde_json::Value) -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    let tensors = std::collections::HashMap::<&str, candle_core::Tensor>::new();
    candle_core::safetensors::save(&tensors, folder.path().join("model.safetensors")).unwrap();
    std::fs::write(folder.path().join("tokenizer.json"), json.to_string()).unwrap();
    std::fs::write(folder.path().join("tokenizer_config.json"), config.to_string()).unwrap();
    folder
}

#[test]
fn special_tokens_of_phi_3_take_the_white_space_after_them() {
    let tokens_of = |name: &str| {
        let tokens = ["<unk>", "<s>", "<|end|>", "<0x0A>", "▁", "a"].map(str::to_owned);
        let text = gguf(&[
            ("general.name", Value::String(name.into())),
            ("tokenizer.ggml.model", Value::String("llama".into())),
            ("tokenizer.ggml.tokens", texts(tokens)),
            ("tokenizer.ggml.scores", Value::Array(vec![Value::F32(0.0); 6])),
            ("tokenizer.ggml.token_type", Value::Array([2, 3, 3, 6, 1, 1].map(Value::I32).into())),
            ("tokenizer.ggml.add_bos_token", Value::Bool(false)),
            ("tokenizer.ggml.add_space_prefix", Value::Bool(false)),
        ]);
        text.unwrap().tokens("a<|end|>\na<s>\na", None, true).unwrap()
    };
    assert_eq!(tokens_of("Phi-3 Mini 4k"), [5, 2, 5, 1, 3, 5]);
    assert_eq!(tokens_of("Llama 2"), [5, 2, 3, 5, 1, 3, 5]);
}

#[test]
fn what_a_template_would_leave_out_is_refused_by_its_name() {
    let text = bytes("gpt-2", "{% for m in messages %}{{ m.content }}{% endfor %}");
    let error = |change: &dyn Fn(&mut Chat)| {
        let mut chat = Chat::with_prompt("hi", None);
        change(&mut chat);
        text.chat(&chat).unwrap_err().to_string()
    };
    let found = error(&|chat| chat.tools = Some(vec![json!({"name": "weather"})]));
    assert!(found.ends_with("the chat template of the model has no tools"), "{found}");
    let found = error(&|chat| drop(chat.variables.insert("enable_thinking".into(), false.into())));
    assert!(found.ends_with("the chat template of the model has no enable_thinking"), "{found}");
}

#[test]
fn the_end_of_tokenizer_config_is_a_token_by_its_text_or_by_its_content() {
    let tokenizer =
        json!({"version": "1.0", "model": {"type": "WordLevel", "vocab": {"a": 0, "</s>": 1}, "unk_token": "a"}});
    let ends = |config: serde_json::Value| {
        let folder = folder(&tokenizer, &config);
        Text::open(&Weights::open(folder.path()).unwrap()).unwrap().ends().to_vec()
    };
    assert_eq!(ends(json!({"eos_token": "</s>"})), [1]);
    assert_eq!(ends(json!({"eos_token": {"content": "</s>"}})), [1]);
    assert_eq!(ends(json!({"eos_token": "<eos>"})), [0; 0]);
    assert_eq!(ends(json!({"eos_token": null})), [0; 0]);
}

#[test]
fn text_after_a_special_token_begins_with_a_space_as_the_scheme_says() {
    let vocabulary = ["<s>", "[I]", "▁", "a", "b", "[", "I", "]", "▁a", "▁b"];
    let vocabulary: serde_json::Map<_, _> =
        (0..).zip(vocabulary).map(|(at, piece)| (piece.into(), json!(at))).collect();
    let special = |id, content, normalized| {
        json!({"id": id, "content": content, "single_word": false, "lstrip": false, "rstrip": false,
               "normalized": normalized, "special": true})
    };
    let tokens = |scheme: &str, prompt: &str, normalized: bool| {
        let tokenizer = json!({
            "version": "1.0", "added_tokens": [special(0, "<s>", normalized), special(1, "[I]", normalized)],
            "pre_tokenizer": {"type": "Metaspace", "replacement": "▁", "prepend_scheme": scheme, "split": false},
            "model": {"type": "BPE", "vocab": vocabulary, "merges": [["▁", "a"], ["▁", "b"]]},
        });
        let folder = folder(&tokenizer, &json!({"chat_template": "<s>{{ messages[0].content }}[I]b"}));
        Text::open(&Weights::open(folder.path()).unwrap()).unwrap().tokens(prompt, None, false).unwrap()
    };
    for normalized in [false, true] {
        // As tokenizers: only the text at the beginning of the chat gets a space, and none of these is there.
        assert_eq!(tokens("first", "a", normalized), [0, 3, 1, 4]);
        assert_eq!(tokens("first", "a[I]a", normalized), [0, 3, 5, 6, 7, 3, 1, 4]);
        assert_eq!(tokens("always", "a", normalized), [0, 8, 1, 9]);
        assert_eq!(tokens("always", "a[I]a", normalized), [0, 8, 5, 6, 7, 3, 1, 9]);
        assert_eq!(tokens("never", "a[I]a", normalized), [0, 3, 5, 6, 7, 3, 1, 4]);
    }
}

#[test]
fn the_pre_tokenizer_cuts_the_text_and_one_that_is_not_known_is_refused() {
    let tokens = |pre| bytes(pre, "").tokens("a12", None, true).unwrap();
    assert_eq!(tokens("gpt-2"), [u32::from(b'a'), 256]);
    assert_eq!(tokens("smollm"), [b'a', b'1', b'2'].map(u32::from));
    // Llama 3 begins its texts, unless the file says that it does not.
    assert_eq!(tokens("llama-bpe"), [257, u32::from(b'a'), 256]);
    let text = bytes("llama-bpe", "");
    for (tokens, inner) in [(&[257, 256][..], 1..2), (&[257, 257, 256], 1..3), (&[256, 257], 0..2), (&[], 0..0)] {
        assert_eq!(text.inner(tokens), inner);
        assert_eq!(bytes("gpt-2", "").inner(tokens), 0..tokens.len());
    }
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
    // The template `tool_use` is for chats with tools.
    let mut chat = Chat::with_prompt("hi", None);
    chat.tools = Some(Vec::new());
    assert_eq!(open().unwrap().chat(&chat).unwrap(), [1]);
    write("tokenizer_config.json", r#"{"chat_template": [{"name": "a"}, {"name": "b"}]}"#);
    let error = format!("{:#}", open().err().unwrap());
    assert!(error.contains(r#"has the templates "a", "b", and none that is named "default""#), "{error}");
    write("tokenizer_config.json", r#"{"chat_template": 7}"#);
    assert!(format!("{:#}", open().err().unwrap()).contains("neither a text nor a list"));
    write("tokenizer.json", "version https://git-lfs.github.com/spec/v1\n");
    assert!(format!("{:#}", open().err().unwrap()).contains("tokenizer.json: it is a pointer of Git LFS"));
}
