use std::sync::Arc;

use disco_serve::engine::{End, Event};
use serde_json::{Value, json};

use super::double::text;
use super::model::{TEXT, beginning, byte};
use super::server::Server;

const COMPLETIONS: &str = "/v1/completions";

#[tokio::test]
async fn a_completion_is_answered_by_one_object() {
    let (server, engine) = Server::answering(|_| text("Hi")).await;
    let reply = server.post(COMPLETIONS, json!({"prompt": "hello", "max_tokens": 7})).await.json();
    assert_eq!(reply["object"], "text_completion");
    assert!(reply["id"].as_str().unwrap().starts_with("cmpl-"));
    let choice = json!({"index": 0, "text": "Hi", "logprobs": null, "finish_reason": "stop"});
    assert_eq!(reply["choices"], json!([choice]));
    let request = &server.requests(engine).await[0];
    assert_eq!((&*request.prompt, request.max_tokens), (&*TEXT.encode("hello", true).unwrap(), 7));
}

#[tokio::test]
async fn prompts_are_texts_or_tokens() {
    let (server, engine) = Server::answering(|request| text(&request.prompt.len().to_string())).await;
    let texts = |reply: Value| -> Vec<String> {
        let choices = reply["choices"].as_array().unwrap().iter();
        choices.map(|choice| choice["text"].as_str().unwrap().to_owned()).collect()
    };
    for (prompt, expected) in
        [(json!([5, 6, 7]), vec!["3"]), (json!([[5], [6, 7]]), vec!["1", "2"]), (json!(["a", "b"]), vec!["1", "1"])]
    {
        let reply = server.post(COMPLETIONS, json!({"prompt": prompt})).await.json();
        assert_eq!(texts(reply), expected);
    }
    let reply = server.post(COMPLETIONS, json!({"prompt": [[5], [6, 7]], "n": 2})).await.json();
    assert_eq!(reply["usage"]["prompt_tokens"], 3);
    assert_eq!(texts(reply), ["1", "1", "2", "2"]);
    let requests = server.requests(engine).await;
    assert_eq!(*requests[0].prompt, [5, 6, 7]);
    let choices: Vec<_> = requests[5..].iter().map(|request| request.params.choice).collect();
    assert_eq!(choices, [0, 1, 0, 1]);
}

#[tokio::test]
async fn each_prompt_has_a_seed_of_its_own_unless_the_client_gives_one() {
    let (server, engine) = Server::answering(|_| text("x")).await;
    server.post(COMPLETIONS, json!({"prompt": ["a", "a"], "n": 2})).await;
    server.post(COMPLETIONS, json!({"prompt": ["a", "a"], "seed": 3})).await;
    let requests = server.requests(engine).await;
    let seeds: Vec<_> = requests.iter().map(|request| request.params.sampler.seed).collect();
    assert!(seeds[0] == seeds[1] && seeds[1] != seeds[2] && seeds[2] == seeds[3], "{seeds:?}");
    assert_eq!(seeds[4..], [3, 3]);
}

#[tokio::test]
async fn special_tokens_are_put_around_a_prompt_unless_the_client_does_not_want_them() {
    let (server, engine) = Server::start_with(|app| app.model.text = Arc::new(beginning())).await;
    let engine = tokio::spawn(engine.answer_all(|_| text("x")));
    let echo = |body: Value| {
        let server = &server;
        async move { server.post(COMPLETIONS, body).await.json()["choices"][0]["text"].clone() }
    };
    assert_eq!(echo(json!({"prompt": "a", "echo": true})).await, "ax");
    assert_eq!(echo(json!({"prompt": "a", "echo": true, "add_special_tokens": false})).await, "ax");
    // The same prompt as tokens.
    let a = byte(b'a');
    assert_eq!(echo(json!({"prompt": [1, a], "echo": true})).await, "ax");
    assert_eq!(echo(json!({"prompt": [1, 1, a], "echo": true})).await, "<|begin|>ax");
    let prompts = server.requests(engine).await;
    let prompts: Vec<_> = prompts.iter().map(|request| request.prompt.to_vec()).collect();
    assert_eq!(prompts, [vec![1, a], vec![a], vec![1, a], vec![1, 1, a]]);
}

#[tokio::test]
async fn an_echo_puts_the_prompt_before_the_text() {
    let (server, engine) = Server::answering(|_| text(" b")).await;
    let reply = server.post(COMPLETIONS, json!({"prompt": "a", "echo": true})).await.json();
    assert_eq!(reply["choices"][0]["text"], "a b");
    let tokens = TEXT.encode("say ", true).unwrap();
    let body = json!({"prompt": tokens, "echo": true, "stream": true});
    let chunks = server.stream(COMPLETIONS, body).await.objects().await;
    assert_eq!(chunks[0]["choices"][0]["text"], TEXT.decode(&tokens).unwrap());
    let requests = server.requests(engine).await;
    assert!(requests.iter().all(|request| request.params.prompt_logprobs.is_none()));
}

#[tokio::test]
async fn without_new_tokens_an_echo_is_the_prompt() {
    let (server, engine) = Server::answering(|_| vec![Event::End(End::Length)]).await;
    let reply = server.post(COMPLETIONS, json!({"prompt": "abc", "echo": true, "max_tokens": 0})).await.json();
    assert_eq!(
        (&reply["choices"][0]["text"], &reply["choices"][0]["finish_reason"]),
        (&json!("abc"), &json!("length"))
    );
    assert_eq!(server.requests(engine).await[0].max_tokens, 0);
}

#[tokio::test]
async fn a_prompt_and_its_text_that_do_not_fit_are_refused_with_their_numbers() {
    let (server, mut double) = Server::start().await;
    for body in [json!({"prompt": vec![5; 901], "max_tokens": 100}), json!({"prompt": vec![5; 1000]})] {
        let reply = server.post(COMPLETIONS, body).await;
        assert_eq!((reply.status, &reply.error()["code"]), (400, &json!("context_length_exceeded")));
        let message = reply.error()["message"].as_str().unwrap().to_owned();
        assert!((message.contains("901") || message.contains("1000")) && message.contains("context"), "{message}");
    }
    assert!(double.is_idle());
}
