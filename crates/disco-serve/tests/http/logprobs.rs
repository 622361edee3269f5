use disco_serve::engine::{End, Event};
use serde_json::{Value, json};

use super::double::likely;
use super::model::{END, TEXT, byte, token};
use super::server::Server;

/// `a€`, of which the second character has three tokens, and then the rest.
fn events() -> Vec<Event> {
    let [a, b] = [byte(b'a'), byte(b'b')];
    let [first, second, third] = "€".as_bytes() else { unreachable!() };
    let tokens = [
        likely(a, -0.5, &[(a, -0.5), (b, -1.5)]),
        likely(byte(*first), -0.25, &[(byte(*first), -0.25), (a, f32::NEG_INFINITY)]),
        likely(byte(*second), 0.0, &[(byte(*second), 0.0), (b, -9.0)]),
        likely(byte(*third), -0.125, &[(a, -0.0625), (b, -8.0)]),
    ];
    tokens.into_iter().map(Event::Token).chain([Event::End(End::Length)]).collect()
}

#[tokio::test]
async fn a_chat_has_logprobs_with_bytes_and_alternatives() {
    let (server, engine) = Server::answering(|_| events()).await;
    let body = json!({"messages": [{"role": "user", "content": "x"}], "logprobs": true, "top_logprobs": 2});
    let whole = server.post("/v1/chat/completions", body.clone()).await.json();
    let content = &whole["choices"][0]["logprobs"]["content"];
    assert_eq!(content.as_array().unwrap().len(), 4);
    let a = json!({"token": "a", "logprob": -0.5, "bytes": [97]});
    assert_eq!(content[0]["token"], a["token"]);
    assert_eq!(content[0]["bytes"], a["bytes"]);
    assert_eq!(content[0]["top_logprobs"], json!([a, {"token": "b", "logprob": -1.5, "bytes": [98]}]));
    assert_eq!((&content[1]["token"], &content[1]["bytes"]), (&json!("bytes:\\xe2"), &json!([0xe2])));
    assert_eq!(content[1]["top_logprobs"][1]["logprob"], -9999.0);
    let mut streamed = body;
    streamed["stream"] = json!(true);
    let chunks = server.stream("/v1/chat/completions", streamed).await.objects().await;
    let parts = chunks.iter().filter_map(|chunk| chunk["choices"][0]["logprobs"]["content"].as_array());
    assert_eq!(&parts.flatten().cloned().collect::<Value>(), content);
    assert_eq!(chunks[2]["choices"][0]["logprobs"]["content"].as_array().unwrap().len(), 3, "{:?}", chunks[2]);
    assert_eq!(server.requests(engine).await[0].params.logprobs, Some(2));
}

#[tokio::test]
async fn a_completion_has_lists_of_logprobs_and_offsets() {
    let (server, engine) = Server::answering(|_| events()).await;
    let reply = server.post("/v1/completions", json!({"prompt": "x", "logprobs": 2})).await.json();
    let logprobs = &reply["choices"][0]["logprobs"];
    assert_eq!(logprobs["tokens"], json!(["a", "bytes:\\xe2", "bytes:\\x82", "bytes:\\xac"]));
    assert_eq!(logprobs["token_logprobs"], json!([-0.5, -0.25, 0.0, -0.125]));
    assert_eq!(logprobs["text_offset"], json!([0, 1, 1, 1]));
    assert_eq!(logprobs["top_logprobs"][0], json!({"a": -0.5, "b": -1.5}));
    // The chosen token is among them, even if it is none of the most probable ones.
    assert_eq!(logprobs["top_logprobs"][3], json!({"a": -0.0625, "b": -8.0, "bytes:\\xac": -0.125}));
    let params = &server.requests(engine).await[0].params;
    assert_eq!((params.logprobs, params.prompt_logprobs), (Some(2), None));
}

#[tokio::test]
async fn an_echo_with_logprobs_tells_those_of_the_prompt() {
    let [p, q] = [byte(b'p'), byte(b'q')];
    let prompt = vec![token(p), likely(q, -2.0, &[(p, -0.5)])];
    let (server, engine) = Server::answering(move |request| {
        let told = [Event::Prompt(prompt.clone())].into_iter();
        if request.max_tokens == 0 {
            told.chain([Event::End(End::Length)]).collect()
        } else {
            told.chain(events()).collect()
        }
    })
    .await;
    let mut body = json!({"prompt": [p, q], "echo": true, "logprobs": 1, "max_tokens": 0});
    let reply = server.post("/v1/completions", body.clone()).await.json();
    let expected = json!({
        "tokens": ["p", "q"], "token_logprobs": [null, -2.0], "top_logprobs": [null, {"p": -0.5, "q": -2.0}], "text_offset": [0, 1],
    });
    assert_eq!(reply["choices"][0], json!({"index": 0, "text": "pq", "logprobs": expected, "finish_reason": "length"}));
    body["max_tokens"] = json!(4);
    let reply = server.post("/v1/completions", body.clone()).await.json();
    assert_eq!(reply["choices"][0]["text"], "pqa€");
    assert_eq!(reply["choices"][0]["logprobs"]["text_offset"], json!([0, 1, 2, 3, 3, 3]));
    body["stream"] = json!(true);
    let chunks = server.stream("/v1/completions", body).await.objects().await;
    assert_eq!((&chunks[0]["choices"][0]["text"], &chunks[0]["choices"][0]["logprobs"]), (&json!("pq"), &expected));
    assert_eq!(chunks[1]["choices"][0]["logprobs"]["text_offset"], json!([2]));
    assert_eq!(server.requests(engine).await[0].params.prompt_logprobs, Some(1));
}

#[tokio::test]
async fn the_token_that_ends_has_logprobs_and_no_text() {
    let [p, a] = [byte(b'p'), byte(b'a')];
    let events = move || {
        let tokens = [likely(a, -0.5, &[]), likely(byte(0xe2), -0.25, &[]), likely(END, -0.125, &[(END, -0.125)])];
        let prompt = Event::Prompt(vec![token(p)]);
        [prompt].into_iter().chain(tokens.map(Event::Token)).chain([Event::End(End::Token)]).collect()
    };
    let (server, _engine) = Server::answering(move |_| events()).await;
    let mut body = json!({"prompt": [p], "logprobs": 1, "echo": true});
    let reply = server.post("/v1/completions", body.clone()).await.json();
    let choice = &reply["choices"][0];
    assert_eq!(choice["text"], "pa\u{fffd}");
    let logprobs = &choice["logprobs"];
    assert_eq!(logprobs["tokens"], json!(["p", "a", "bytes:\\xe2", "<|end|>"]));
    assert_eq!(logprobs["token_logprobs"], json!([null, -0.5, -0.25, -0.125]));
    assert_eq!(logprobs["top_logprobs"][3], json!({"<|end|>": -0.125}));
    assert_eq!(logprobs["text_offset"], json!([0, 1, 2, 3]));
    assert_eq!(reply["usage"]["total_tokens"], 4);
    body["stream"] = json!(true);
    let chunks = server.stream("/v1/completions", body).await.objects().await;
    let streamed = chunks.iter().filter_map(|chunk| chunk["choices"][0]["logprobs"]["tokens"].as_array());
    assert_eq!(&streamed.flatten().cloned().collect::<Value>(), &logprobs["tokens"]);

    let body = json!({"messages": [{"role": "user", "content": "x"}], "logprobs": true});
    let reply = server.post("/v1/chat/completions", body).await.json();
    let content = reply["choices"][0]["logprobs"]["content"].as_array().unwrap();
    assert_eq!((content.len(), &content[2]["token"], &content[2]["logprob"]), (3, &json!("<|end|>"), &json!(-0.125)));
}

#[tokio::test]
async fn the_places_of_an_echo_are_those_of_its_tokens_also_of_special_ones() {
    let prompt = "<|begin|>user\nHé€<|end|>\n";
    let tokens = TEXT.encode(prompt, true).unwrap();
    let told: Vec<_> = tokens.iter().map(|token| likely(*token, -1.0, &[])).collect();
    let (server, _engine) =
        Server::answering(move |_| vec![Event::Prompt(told.clone()), Event::End(End::Length)]).await;
    for written in [json!(prompt), json!(tokens)] {
        let body = json!({"prompt": written, "max_tokens": 0, "echo": true, "logprobs": 0});
        let choice = server.post("/v1/completions", body).await.json()["choices"][0].clone();
        assert_eq!(choice["text"], prompt);
        let offsets = choice["logprobs"]["text_offset"].as_array().unwrap();
        let mut bounds: Vec<_> = offsets.iter().map(|offset| offset.as_u64().unwrap() as usize).collect();
        bounds.push(prompt.chars().count());
        let characters: Vec<char> = prompt.chars().collect();
        let cut: Vec<String> = bounds.windows(2).map(|cut| characters[cut[0]..cut[1]].iter().collect()).collect();
        assert_eq!(cut.concat(), prompt);
        for (part, name) in cut.iter().zip(choice["logprobs"]["tokens"].as_array().unwrap()) {
            // Of the tokens of one character, the last one has it.
            assert!(name == part || name.as_str().unwrap().starts_with("bytes:"), "{part:?}, {name}");
        }
    }
}

#[tokio::test]
async fn tokens_after_a_stop_string_have_no_logprobs() {
    let all = "ab.".bytes().map(|each| Event::Token(likely(byte(each), -1.0, &[]))).collect::<Vec<_>>();
    let (server, _engine) = Server::answering(move |_| all.clone()).await;
    let reply = server.post("/v1/completions", json!({"prompt": "x", "logprobs": 0, "stop": "b."})).await.json();
    let choice = &reply["choices"][0];
    assert_eq!((&choice["text"], &choice["logprobs"]["tokens"]), (&json!("a"), &json!(["a"])));
}
