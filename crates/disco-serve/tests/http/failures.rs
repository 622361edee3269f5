use std::time::Duration;

use disco_serve::engine::{End, Event, Failure};
use disco_serve::health::State;
use serde_json::json;

use super::server::Server;

const COMPLETIONS: &str = "/v1/completions";

#[tokio::test]
async fn a_failure_before_the_reply_has_a_status() {
    for (failure, status, kind) in [
        (Failure::Invalid("it does not fit".into()), 400, "invalid_request_error"),
        (Failure::Failed("a worker is lost".into()), 500, "server_error"),
        (Failure::Shutdown, 503, "service_unavailable_error"),
    ] {
        let (server, _engine) = Server::answering(move |_| vec![Event::Failed(failure.clone())]).await;
        let reply = server.post(COMPLETIONS, json!({"prompt": "x"})).await;
        assert_eq!((reply.status, &reply.error()["type"]), (status, &json!(kind)));
        assert_eq!(reply.header("retry-after").is_some(), status == 503);
    }
}

#[tokio::test]
async fn a_failure_in_a_stream_is_its_last_event_and_cancels_the_other_texts() {
    let (server, mut double) = Server::start().await;
    let mut stream = server.stream(COMPLETIONS, json!({"prompt": "x", "n": 2, "stream": true})).await;
    let (first, second) = (double.take().await, double.take().await);
    first.say("a").await;
    assert_eq!(stream.head().await.status, 200);
    assert_eq!(stream.object().await["choices"][0]["text"], "a");
    first.send(Event::Failed(Failure::Failed("a worker is lost".into()))).await;
    let error = stream.object().await;
    assert!(error["error"]["message"].as_str().unwrap().contains("a worker is lost"));
    assert_eq!(error["error"]["type"], "server_error");
    assert_eq!(stream.event().await, None);
    assert!(second.abandoned().await);
}

#[tokio::test]
async fn an_engine_that_is_gone_ends_its_texts_with_an_error() {
    let (server, mut double) = Server::start().await;
    let mut stream = server.stream(COMPLETIONS, json!({"prompt": "x"})).await;
    drop(double.take().await);
    assert_eq!(stream.response().await.status, 500);
}

#[tokio::test]
async fn a_stream_without_tokens_has_events_for_clients_that_count_them() {
    let messages = json!([{"role": "user", "content": "x"}]);
    for (route, body, kind) in [
        ("/v1/messages", json!({"messages": messages, "max_tokens": 5, "stream": true}), "\"type\":\"ping\""),
        ("/v1/responses", json!({"input": "x", "stream": true}), "\"type\":\"response.in_progress\""),
    ] {
        let (server, mut double) = Server::start_with(|app| app.limits.keep_alive = Duration::from_millis(5)).await;
        let mut stream = server.stream(route, body).await;
        let _taken = double.take().await;
        stream.head().await;
        // The first one begins the answer.
        stream.event().await.unwrap();
        for _ in 0..3 {
            let event = stream.event().await.unwrap();
            assert!(event.contains(kind), "{event}");
        }
    }
}

#[tokio::test]
async fn a_stream_without_tokens_has_comments() {
    let (server, mut double) = Server::start_with(|app| app.limits.keep_alive = Duration::from_millis(5)).await;
    let body = json!({"messages": [{"role": "user", "content": "x"}], "stream": true});
    let mut stream = server.stream("/v1/chat/completions", body).await;
    let taken = double.take().await;
    stream.head().await;
    assert_eq!(stream.object().await["choices"][0]["delta"]["role"], "assistant");
    assert_eq!(stream.event().await.unwrap(), ": keep-alive");
    server.health.set_state(State::Repairing);
    while stream.event().await.unwrap() != ": repairing" {}
    server.health.set_state(State::Ready);
    while stream.event().await.unwrap() != ": keep-alive" {}
    taken.say("a").await;
    taken.end(End::Length).await;
    let mut events = Vec::new();
    while let Some(event) = stream.event().await {
        events.extend(event.starts_with("data").then_some(event));
    }
    assert_eq!((events.len(), &*events[2]), (3, "data: [DONE]"));
}
