use serde_json::{Value, json};

use super::client::{exchange, get, post};
use super::server::Server;

const CHAT: &str = "/v1/chat/completions";
const COMPLETIONS: &str = "/v1/completions";

fn with(body: Value, more: &Value) -> Value {
    let mut body = body;
    body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    body
}

fn chat(more: &Value) -> Value {
    with(json!({"messages": [{"role": "user", "content": "x"}]}), more)
}

fn completion(more: &Value) -> Value {
    with(json!({"prompt": "x"}), more)
}

#[tokio::test]
async fn a_value_out_of_range_or_of_another_type_is_refused_by_name() {
    let (server, mut double) = Server::start().await;
    let both = [
        json!({"temperature": 2.1}),
        json!({"top_k": -2}),
        json!({"repetition_penalty": 0}),
        json!({"n": 17}),
        json!({"stop": ""}),
        json!({"stop": ["a", 1]}),
        json!({"stop": vec!["a"; 17]}),
        json!({"stop": "a".repeat(257)}),
        json!({"logit_bias": {"1": 101}}),
        json!({"logit_bias": {"512": 1}}),
        json!({"logit_bias": {"one": 1}}),
        json!({"stop_token_ids": [512]}),
        json!({"stop_token_ids": vec![1; 1025]}),
        json!({"max_tokens": -2}),
        json!({"min_tokens": 5, "max_tokens": 4}),
        json!({"stream_options": {"include_usage": true}}),
    ];
    for more in &both {
        for (path, body) in [(CHAT, chat(more)), (COMPLETIONS, completion(more))] {
            let reply = server.post(path, body).await;
            let name = more.as_object().unwrap().keys().next().unwrap();
            let param = reply.error()["param"].as_str().unwrap_or_default().to_owned();
            let field = param.split(['[', '.']).next().unwrap();
            assert_eq!((reply.status, field), (400, name.as_str()), "{more}: {reply:?}");
            assert!(reply.error()["message"].as_str().unwrap().contains(name.as_str()), "{reply:?}");
        }
    }
    for (path, body, name) in [
        (CHAT, chat(&json!({"max_tokens": 0})), "max_tokens"),
        (CHAT, chat(&json!({"logprobs": true, "top_logprobs": 21})), "top_logprobs"),
        (CHAT, chat(&json!({"top_logprobs": 1})), "top_logprobs"),
        (CHAT, json!({}), "messages"),
        (CHAT, json!({"messages": []}), "messages"),
        (CHAT, json!({"messages": ["x"]}), "messages[0]"),
        (CHAT, json!({"messages": [{"content": "x"}]}), "messages[0].role"),
        (CHAT, json!({"messages": [{"role": "user"}]}), "messages[0].content"),
        (CHAT, json!({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}), "messages[0].content[0]"),
        (COMPLETIONS, completion(&json!({"logprobs": 21})), "logprobs"),
        (COMPLETIONS, json!({}), "prompt"),
        (COMPLETIONS, json!({"prompt": []}), "prompt"),
        (COMPLETIONS, json!({"prompt": ""}), "prompt"),
        (COMPLETIONS, json!({"prompt": [[]]}), "prompt"),
        (COMPLETIONS, json!({"prompt": [512]}), "prompt"),
        (COMPLETIONS, json!({"prompt": [-1]}), "prompt"),
        (COMPLETIONS, json!({"prompt": [1, "a"]}), "prompt"),
        (COMPLETIONS, json!({"prompt": vec!["a"; 257]}), "prompt"),
    ] {
        let reply = server.post(path, body.clone()).await;
        assert_eq!((reply.status, &reply.error()["param"]), (400, &json!(name)), "{body}: {reply:?}");
    }
    assert!(double.is_idle());
}

#[tokio::test]
async fn requests_that_no_route_takes_get_an_error_object() {
    let (server, _double) = Server::start().await;
    let address = server.address;
    let reply = get(address, "/v2").await;
    assert_eq!((reply.status, &reply.error()["type"]), (404, &json!("invalid_request_error")));
    let reply = get(address, CHAT).await;
    assert_eq!((reply.status, reply.header("allow")), (405, Some("POST")));
    assert_eq!(reply.error()["code"], "method_not_allowed");
    let reply = server.post(COMPLETIONS, json!({"model": "gpt-4", "prompt": "x"})).await;
    assert_eq!((reply.status, &reply.error()["code"]), (404, &json!("model_not_found")));
    for body in ["", "{", "[1]", "{\"prompt\": \"\u{0}\"}", &"[".repeat(10_000)] {
        let reply = post(address, COMPLETIONS, body).await;
        assert_eq!((reply.status, &reply.error()["code"]), (400, &json!("invalid_json")), "{body:?}");
    }
    let form = "POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-type: text/plain\r\ncontent-length: 2\r\n\r\n{}";
    let reply = exchange(address, form.as_bytes()).await;
    assert_eq!((reply.status, &reply.error()["code"]), (415, &json!("unsupported_media_type")));
}

#[tokio::test]
async fn a_body_beyond_the_limit_is_refused() {
    let (server, _double) = Server::start_with(|app| app.limits.body_bytes = 1000).await;
    let reply = server.post(COMPLETIONS, json!({"prompt": "x".repeat(1000)})).await;
    assert_eq!((reply.status, &reply.error()["code"]), (413, &json!("body_too_large")));
    // Without a length, it is read up to the limit.
    let head =
        "POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ntransfer-encoding: chunked\r\n";
    let chunk = format!("200\r\n{}\r\n", "x".repeat(512));
    let reply = exchange(server.address, format!("{head}\r\n{chunk}{chunk}").as_bytes()).await;
    assert_eq!((reply.status, &reply.error()["code"]), (413, &json!("body_too_large")));
}
