use std::time::Duration;

use disco_serve::health::State;
use serde_json::json;
use tokio::task::JoinSet;

use super::client::post;
use super::double::text;
use super::model::TEXT;
use super::server::Server;

const COMPLETIONS: &str = "/v1/completions";

#[tokio::test]
async fn requests_beyond_those_that_may_wait_are_refused_until_one_has_a_token() {
    let (server, mut double) = Server::start_with(|app| app.limits.waiting_requests = 2).await;
    let mut first = server.stream(COMPLETIONS, json!({"prompt": "a", "stream": true})).await;
    let one = double.take().await;
    let _second = server.stream(COMPLETIONS, json!({"prompt": "b"})).await;
    let _other = double.take().await;
    let reply = server.post(COMPLETIONS, json!({"prompt": "c"})).await;
    assert_eq!((reply.status, reply.header("retry-after")), (429, Some("1")));
    let error = reply.error();
    assert_eq!((&error["type"], &error["code"]), (&json!("rate_limit_error"), &json!("too_many_requests")));
    one.say("x").await;
    // A client that has the token's chunk knows that the seat is free.
    first.head().await;
    first.object().await;
    let _third = server.stream(COMPLETIONS, json!({"prompt": "c"})).await;
    assert_eq!(*double.take().await.request().prompt, *TEXT.encode("c", true).unwrap());
}

#[tokio::test]
async fn a_prompt_waits_with_its_true_number_of_tokens() {
    let (server, mut double) = Server::start_with(|app| app.limits.waiting_tokens = 100).await;
    let prompt = "the ".repeat(24);
    let tokens = TEXT.encode(&prompt, true).unwrap().len();
    assert!(prompt.len() > 90 && tokens < 60, "{tokens}");
    let _first = server.stream(COMPLETIONS, json!({"prompt": prompt})).await;
    double.take().await;
    // This one is no text, whose bytes would be counted until it is tokenised.
    let _second = server.stream(COMPLETIONS, json!({"prompt": vec![5; 100 - tokens]})).await;
    assert_eq!(double.take().await.request().prompt.len(), 100 - tokens);
}

#[tokio::test]
async fn prompts_beyond_the_tokens_that_may_wait_are_refused() {
    let (server, mut double) = Server::start_with(|app| app.limits.waiting_tokens = 100).await;
    let waiting = server.stream(COMPLETIONS, json!({"prompt": vec![5; 90]})).await;
    let taken = double.take().await;
    let reply = server.post(COMPLETIONS, json!({"prompt": vec![5; 11]})).await;
    assert_eq!((reply.status, reply.header("retry-after")), (429, Some("1")));
    assert_eq!(reply.error()["code"], "too_many_tokens");
    // A client that leaves gives its tokens back.
    drop(waiting);
    assert!(taken.abandoned().await);
    let more = server.stream(COMPLETIONS, json!({"prompt": vec![5; 90]})).await;
    double.take().await;
    drop(more);
}

#[tokio::test]
async fn a_prompt_far_beyond_the_context_is_refused_before_it_is_tokenised() {
    let (server, mut double) = Server::start().await;
    let prompt = "1".repeat(2 << 20);
    for (path, body) in [
        (COMPLETIONS, json!({"prompt": prompt})),
        ("/v1/chat/completions", json!({"messages": [{"role": "user", "content": prompt}]})),
    ] {
        let reply = server.post(path, body).await;
        assert_eq!((reply.status, &reply.error()["code"]), (400, &json!("context_length_exceeded")));
        let message = reply.error()["message"].as_str().unwrap().to_owned();
        assert!(message.contains("more than 1000 tokens"), "{message}");
    }
    assert!(double.is_idle());
}

#[tokio::test]
async fn a_small_text_is_tokenised_beside_large_ones() {
    let (server, _double) = Server::start().await;
    let large = json!({"prompt": "1".repeat(100 << 10)});
    let cores = std::thread::available_parallelism().unwrap().get();
    let mut large: JoinSet<_> = (0..6 * cores)
        .map(|_| {
            let (address, body) = (server.address, large.to_string());
            async move { post(address, "/tokenize", &body).await.status }
        })
        .collect();
    // By now the others have arrived, too, and wait for one another.
    assert_eq!(large.join_next().await.unwrap().unwrap(), 200);
    assert_eq!(server.post("/tokenize", json!({"prompt": "1"})).await.status, 200);
    while large.try_join_next().is_some() {}
    assert!(large.len() >= cores, "{} of the large texts were left", large.len());
}

#[tokio::test]
async fn texts_of_one_request_that_can_never_wait_at_once_are_refused() {
    let (server, _double) = Server::start_with(|app| app.limits.waiting_requests = 3).await;
    let reply = server.post(COMPLETIONS, json!({"prompt": ["a", "b"], "n": 2})).await;
    assert_eq!((reply.status, &reply.error()["param"]), (400, &json!("prompt")));
}

#[tokio::test]
async fn while_the_engine_is_not_ready_requests_are_refused() {
    let (server, engine) = Server::answering(|_| text("x")).await;
    for state in [State::Starting, State::Repairing, State::Failed] {
        server.health.set_state(state);
        let reply = server.post(COMPLETIONS, json!({"prompt": "a"})).await;
        assert_eq!((reply.status, reply.header("retry-after")), (503, Some("5")), "{state:?}");
        assert_eq!(reply.error()["type"], "service_unavailable_error");
    }
    server.health.set_state(State::Ready);
    assert_eq!(server.post(COMPLETIONS, json!({"prompt": "a"})).await.status, 200);
    assert_eq!(server.requests(engine).await.len(), 1);
}

#[tokio::test]
async fn an_engine_that_takes_nothing_refuses_requests() {
    let (server, double) = Server::start().await;
    drop(double);
    let reply = server.post(COMPLETIONS, json!({"prompt": "a"})).await;
    assert_eq!((reply.status, reply.header("retry-after")), (503, Some("5")));
    assert_eq!(reply.error()["code"], "shutting_down");
}

#[tokio::test]
async fn a_body_that_does_not_arrive_ends_its_request() {
    let (server, _double) = Server::start_with(|app| app.limits.body_time = Duration::from_millis(20)).await;
    let half =
        "POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: 9\r\n\r\n{";
    let reply = super::client::exchange(server.address, half.as_bytes()).await;
    assert_eq!((reply.status, &reply.error()["code"]), (408, &json!("request_timeout")));
}
