//! Texts whose characters share tokens, in all replies.

use std::sync::Arc;

use disco_candle::weights::Weights;
use disco_models::text::Text;
use disco_serve::engine::{End, Event, Token};
use proptest::prelude::*;
use serde_json::{Value, json};

use super::double::likely;
use super::server::Server;

const TEXT: &str = "X: 客é价😀 a€示数";

/// A tokenizer whose tokens from 1 on have these bytes.
fn tokenizer(pieces: &[&[u8]]) -> Text {
    let is_printed = |byte: u8| matches!(byte, b'!'..=b'~' | 0xa1..=0xac | 0xae..=0xff);
    let unprinted: Vec<u8> = (0..=255).filter(|byte| !is_printed(*byte)).collect();
    let character = |byte: &u8| match unprinted.iter().position(|each| each == byte) {
        Some(place) => char::from_u32(256 + place as u32).unwrap(),
        None => char::from(*byte),
    };
    let spelled = pieces.iter().map(|piece| piece.iter().map(character).collect::<String>());
    let vocabulary: serde_json::Map<_, _> =
        ["<|end|>".into()].into_iter().chain(spelled).zip((0..).map(Value::from)).collect();
    let end = json!({"id": 0, "content": "<|end|>", "single_word": false, "lstrip": false, "rstrip": false,
                     "normalized": false, "special": true});
    let json = json!({
        "version": "1.0", "added_tokens": [end], "model": {"type": "BPE", "vocab": vocabulary, "merges": []},
        "decoder": {"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": true},
    });
    let folder = tempfile::tempdir().unwrap();
    let write = |name: &str, text: &str| std::fs::write(folder.path().join(name), text).unwrap();
    let tensors = std::collections::HashMap::<&str, candle_core::Tensor>::new();
    candle_core::safetensors::save(&tensors, folder.path().join("model.safetensors")).unwrap();
    write("tokenizer.json", &json.to_string());
    write("chat_template.jinja", "{% for m in messages %}{{ m.content }}{% endfor %}");
    Text::open(&Weights::open(folder.path()).unwrap()).unwrap()
}

/// The texts of a reply or of all chunks of a stream, one after the other.
fn text<'a>(objects: impl IntoIterator<Item = &'a Value>) -> String {
    let choices = objects.into_iter().map(|object| &object["choices"][0]);
    let texts = choices.filter_map(|choice| {
        [&choice["text"], &choice["message"]["content"], &choice["delta"]["content"]]
            .into_iter()
            .find_map(Value::as_str)
    });
    texts.collect()
}

/// Asks for a text whose tokens end at `ends`, in all ways, whole and as a stream. The first token must be `X`.
async fn replies(ends: &[usize]) -> Vec<String> {
    let bounds = [&[0][..], ends, &[TEXT.len()]].concat();
    let pieces: Vec<_> = bounds.windows(2).map(|bounds| &TEXT.as_bytes()[bounds[0]..bounds[1]]).collect();
    // Equal pieces have one token.
    let mut known: Vec<&[u8]> = pieces.clone();
    known.sort_unstable();
    known.dedup();
    let place = |piece: &&[u8]| 1 + known.iter().position(|each| each == piece).unwrap() as u32;
    let tokens: Vec<u32> = pieces.iter().map(place).collect();
    let (tokenizer, size) = (Arc::new(tokenizer(&known)), 1 + known.len());
    let (server, double) = Server::start_with(|app| {
        (app.model.text, app.model.vocabulary, app.model.ends) = (tokenizer, size, vec![0]);
    })
    .await;
    let generated: Vec<Token> = tokens.iter().map(|token| likely(*token, -1.0, &[])).collect();
    let engine = tokio::spawn(double.answer_all(move |request| {
        let has_logprobs = request.params.prompt_logprobs.is_some();
        let prompt =
            has_logprobs.then(|| Event::Prompt(request.prompt.iter().map(|id| likely(*id, -1.0, &[])).collect()));
        let events = prompt.into_iter().chain(generated.iter().cloned().map(Event::Token));
        events.chain([Event::Token(likely(0, -1.0, &[])), Event::End(End::Token)]).collect()
    }));
    let first = json!([tokens[0]]);
    let mut replies = Vec::new();
    for (path, body) in [
        ("/v1/completions", json!({"prompt": first})),
        ("/v1/completions", json!({"prompt": first, "logprobs": 0})),
        ("/v1/chat/completions", json!({"messages": [{"role": "user", "content": "X"}]})),
        ("/v1/completions", json!({"prompt": tokens, "echo": true})),
        ("/v1/completions", json!({"prompt": tokens, "echo": true, "logprobs": 0})),
    ] {
        let whole = server.post(path, body.clone()).await.json();
        replies.push(text([&whole]));
        let logprobs = &whole["choices"][0]["logprobs"];
        if let (Some(entries), Some(total)) = (logprobs["tokens"].as_array(), whole["usage"]["total_tokens"].as_u64()) {
            let expected = if body["echo"] == true { total } else { total - 1 };
            assert_eq!(entries.len() as u64, expected, "{whole}");
        }
        let mut streamed = body;
        streamed["stream"] = json!(true);
        replies.push(text(&server.stream(path, streamed).await.objects().await));
    }
    server.requests(engine).await;
    replies
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(24) })]

    #[test]
    fn all_replies_have_the_text_however_it_is_cut_into_tokens(mut ends in prop::collection::btree_set(1..TEXT.len(), 0..TEXT.len())) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        // The first token is a whole character, with which the prompts of some requests begin.
        ends.insert(1);
        let replies = runtime.block_on(replies(&ends.into_iter().collect::<Vec<_>>()));
        let twice = TEXT.repeat(2);
        // Two replies of each request; an echo has the text twice.
        let expected = [TEXT; 6].into_iter().chain([&*twice; 4]).collect::<Vec<_>>();
        prop_assert_eq!(replies, expected);
    }
}
