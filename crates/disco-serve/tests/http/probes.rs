use std::time::Duration;

use disco_models::text::Chat;
use disco_serve::health::{Load, State};
use disco_serve::http::BearerToken;
use serde_json::{Value, json};

use super::client::{exchange, get};
use super::double::text;
use super::model::{TEXT, with_template};
use super::server::Server;

#[tokio::test]
async fn health_tells_the_engines_steps_and_load() {
    let (server, _double) = Server::start_with(|app| app.limits.step_time = Duration::ZERO).await;
    let health = get(server.address, "/health").await;
    assert_eq!((health.status, &health.json()["seconds_since_last_step"]), (200, &json!(null)));
    server.health.step_began();
    let health = get(server.address, "/health").await;
    assert_eq!((health.status, &health.json()["step_hangs"]), (503, &json!(true)));
    server.health.step_ended(Load { running: 1, waiting: 2, free_blocks: 3, blocks: 4 });
    let health = get(server.address, "/health").await;
    assert_eq!(health.status, 200);
    assert!(health.json()["seconds_since_last_step"].is_number());
    assert_eq!(health.json()["load"], json!({"running": 1, "waiting": 2, "free_blocks": 3, "blocks": 4}));
    server.health.set_state(State::Failed);
    assert_eq!(get(server.address, "/health").await.status, 503);
}

#[tokio::test]
async fn a_server_is_ready_only_if_its_engine_takes_requests() {
    let (server, _double) = Server::start().await;
    assert_eq!(get(server.address, "/ready").await.status, 200);
    for state in [State::Starting, State::Repairing, State::Failed] {
        server.health.set_state(state);
        let ready = get(server.address, "/ready").await;
        assert_eq!((ready.status, ready.header("retry-after")), (503, Some("5")));
        let is_alive = state != State::Failed;
        assert_eq!(get(server.address, "/health").await.status == 200, is_alive);
    }
}

#[tokio::test]
async fn the_model_is_listed() {
    let (server, _double) = Server::start().await;
    let models = get(server.address, "/v1/models").await.json();
    assert_eq!(models["object"], "list");
    let model = &models["data"][0];
    assert_eq!(
        (&model["id"], &model["object"], &model["max_model_len"]),
        (&json!("tiny"), &json!("model"), &json!(1000))
    );
    assert_eq!(&get(server.address, "/v1/models/tiny").await.json(), model);
    assert_eq!(get(server.address, "/v1/models/some/other").await.status, 404);
}

#[tokio::test]
async fn texts_are_tokenised_and_back() {
    let (server, _double) = Server::start().await;
    let reply = server.post("/tokenize", json!({"prompt": "hello there"})).await.json();
    let tokens = TEXT.encode("hello there", true).unwrap();
    assert_eq!(reply, json!({"count": tokens.len(), "max_model_len": 1000, "tokens": tokens, "token_strs": null}));
    let reply = server.post("/tokenize", json!({"prompt": "<|end|>é", "return_token_strs": true})).await.json();
    assert_eq!(reply["token_strs"], json!(["<|end|>", "bytes:\\xc3", "bytes:\\xa9"]));
    for (more, expected) in [(json!({}), "<|end|>hi"), (json!({"skip_special_tokens": true}), "hi")] {
        let mut body = json!({"tokens": TEXT.encode("<|end|>hi", false).unwrap()});
        body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        assert_eq!(server.post("/detokenize", body).await.json(), json!({"prompt": expected}));
    }
    let reply = server.post("/detokenize", json!({"tokens": [512]})).await;
    assert_eq!((reply.status, &reply.error()["param"]), (400, &json!("tokens")));
    assert_eq!(server.post("/tokenize", json!({})).await.error()["param"], "messages");
    let names = get(server.address, "/tokenizer_info").await.json();
    assert_eq!((&names["bos_token"], &names["eos_token"]), (&json!("<|begin|>"), &json!("<|end|>")));
}

#[tokio::test]
async fn a_chat_is_tokenised_as_it_is_answered() {
    let (server, _double) = Server::start().await;
    let tokenised = |more: Value| {
        let mut body = json!({"messages": [{"role": "user", "content": "hi"}]});
        body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        let server = &server;
        async move { server.post("/tokenize", body).await }
    };
    let whole = tokenised(json!({})).await.json()["tokens"].clone();
    assert_eq!(whole, json!(TEXT.tokens("hi", None, false).unwrap()));
    let mut chat = Chat::with_prompt("hi", None);
    chat.variables.insert("loud".into(), json!(true));
    let loud = tokenised(json!({"chat_template_kwargs": {"loud": true}})).await.json()["tokens"].clone();
    assert_eq!(loud, json!(TEXT.chat(&chat).unwrap()));
    for refused in [json!({"functions": [{"name": "f"}]}), json!({"documents": ["a"]})] {
        let name = refused.as_object().unwrap().keys().next().unwrap().clone();
        let reply = tokenised(refused).await;
        assert_eq!((reply.status, &reply.error()["param"]), (400, &json!(name)));
    }
    let template = "{{ messages[0].content }}{% if add_generation_prompt %}!{% endif %}";
    let (server, _double) = Server::start_with(|app| app.model.text = with_template(template)).await;
    for (adds, expected) in [(json!(null), "hi!"), (json!(true), "hi!"), (json!(false), "hi")] {
        let body = json!({"messages": [{"role": "user", "content": "hi"}], "add_generation_prompt": adds});
        let tokens = server.post("/tokenize", body).await.json()["tokens"].clone();
        assert_eq!(tokens, json!(TEXT.encode(expected, false).unwrap()));
    }
}

#[tokio::test]
async fn metrics_have_the_names_of_vllm() {
    let (server, _engine) = Server::answering(|_| text("Hi")).await;
    server.post("/v1/completions", json!({"prompt": "x"})).await;
    server.post("/v1/completions", json!({"prompt": "x", "n": 0})).await;
    server.health.set_load(Load { running: 1, waiting: 2, free_blocks: 1, blocks: 4 });
    let metrics = get(server.address, "/metrics").await;
    assert_eq!(metrics.status, 200);
    for name in [
        "vllm:time_to_first_token_seconds_bucket",
        "vllm:inter_token_latency_seconds_count",
        "vllm:e2e_request_latency_seconds_sum",
        "vllm:prompt_tokens_total{model_name=\"tiny\"}",
        "vllm:generation_tokens_total",
        "vllm:request_success_total{model_name=\"tiny\",finished_reason=\"stop\"}",
        "vllm:num_requests_running{model_name=\"tiny\"}",
        "vllm:kv_cache_usage_perc",
        "disco_serve_rejections_total{model_name=\"tiny\",reason=\"invalid_value\"}",
    ] {
        assert!(metrics.body.contains(name), "{name}: {}", metrics.body);
    }
}

#[tokio::test]
async fn a_server_with_a_token_answers_only_clients_that_have_it() {
    let (server, _double) = Server::start_with(|app| app.token = Some(BearerToken::new("secret").unwrap())).await;
    for open in ["/health", "/ready", "/metrics"] {
        assert_eq!(get(server.address, open).await.status, 200);
    }
    for closed in ["/v1/models", "/tokenizer_info", "/nothing"] {
        let reply = get(server.address, closed).await;
        assert_eq!((reply.status, reply.header("www-authenticate")), (401, Some("Bearer")));
        assert_eq!(reply.error()["type"], "authentication_error");
    }
    for (token, status) in [("secret", 200), ("secrets", 401)] {
        for header in ["authorization: Bearer ", "x-api-key: "] {
            let request = format!("GET /v1/models HTTP/1.1\r\nhost: x\r\n{header}{token}\r\n\r\n");
            assert_eq!(exchange(server.address, request.as_bytes()).await.status, status);
        }
    }
}
