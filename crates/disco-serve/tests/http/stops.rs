use disco_serve::engine::{End, Event};
use serde_json::{Value, json};

use super::double::text;
use super::model::{END, byte, token};
use super::server::Server;

const COMPLETIONS: &str = "/v1/completions";

/// The texts of a stream's chunks, and the reason of its end.
fn parts(chunks: &[Value]) -> (Vec<&str>, &str) {
    let choices: Vec<_> = chunks.iter().map(|chunk| &chunk["choices"][0]).collect();
    let (last, choices) = choices.split_last().unwrap();
    assert_eq!(last["text"], "");
    assert!(choices.iter().all(|choice| choice["finish_reason"].is_null()));
    (choices.iter().map(|choice| choice["text"].as_str().unwrap()).collect(), last["finish_reason"].as_str().unwrap())
}

#[tokio::test]
async fn a_stop_string_ends_the_text_before_it_and_cancels_the_request() {
    let (server, mut double) = Server::start().await;
    let body = json!({"prompt": "x", "stop": ["END", "nothing"], "stream": true});
    let stream = server.stream(COMPLETIONS, body).await;
    let taken = double.take().await;
    taken.say("a E").await;
    taken.say("NxEND").await;
    assert!(taken.abandoned().await);
    let chunks = stream.objects().await;
    assert_eq!(parts(&chunks), (vec!["a", " ", "ENx"], "stop"));
}

#[tokio::test]
async fn an_incomplete_character_at_the_end_is_told() {
    let events = || vec![Event::Token(token(byte(b'a'))), Event::Token(token(byte(0xe2))), Event::End(End::Length)];
    let (server, _engine) = Server::answering(move |_| events()).await;
    let chunks = server.stream(COMPLETIONS, json!({"prompt": "x", "stream": true})).await.objects().await;
    assert_eq!(parts(&chunks), (vec!["a", "\u{fffd}"], "length"));
}

#[tokio::test]
async fn the_text_of_a_token_that_ends_is_not_told() {
    let end = byte(b'.');
    let events = move || vec![Event::Token(token(byte(b'a'))), Event::Token(token(end)), Event::End(End::Token)];
    let (server, engine) = Server::answering(move |_| events()).await;
    let reply = server.post(COMPLETIONS, json!({"prompt": "x", "stop_token_ids": [end]})).await.json();
    assert_eq!((&reply["choices"][0]["text"], &reply["choices"][0]["finish_reason"]), (&json!("a"), &json!("stop")));
    assert_eq!(reply["usage"]["completion_tokens"], 2);
    assert_eq!(server.requests(engine).await[0].params.ends, [END, end]);
}

#[tokio::test]
async fn a_stop_string_counts_once_the_text_has_its_least_tokens() {
    let (server, _engine) = Server::answering(|_| text("a.b.c.d")).await;
    for (min_tokens, expected) in
        [(0, "a"), (1, "a"), (2, "a.b"), (3, "a.b"), (4, "a.b.c"), (6, "a.b.c.d"), (7, "a.b.c.d")]
    {
        let mut body = json!({"prompt": "x", "stop": ".", "min_tokens": min_tokens});
        let reply = server.post(COMPLETIONS, body.clone()).await.json();
        assert_eq!(reply["choices"][0]["text"], expected, "{min_tokens}");
        body["stream"] = json!(true);
        let chunks = server.stream(COMPLETIONS, body).await.objects().await;
        assert_eq!(parts(&chunks).0.concat(), expected, "{min_tokens}");
    }
}
