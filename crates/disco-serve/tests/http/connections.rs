use std::time::Duration;

use disco_serve::engine::{EVENTS_AHEAD, End};
use disco_serve::http::App;
use serde_json::json;

use super::client::{Stream, exchange, get, posted};
use super::double::text;
use super::server::Server;

const COMPLETIONS: &str = "/v1/completions";

#[tokio::test]
async fn a_client_that_leaves_a_stream_cancels_its_texts() {
    let (server, mut double) = Server::start().await;
    let mut stream = server.stream(COMPLETIONS, json!({"prompt": "x", "stream": true, "n": 2})).await;
    let (first, second) = (double.take().await, double.take().await);
    first.say("a").await;
    stream.head().await;
    stream.object().await;
    drop(stream);
    assert!(first.abandoned().await);
    assert!(second.abandoned().await);
}

#[tokio::test]
async fn a_client_that_leaves_before_its_reply_cancels_it() {
    let (server, mut double) = Server::start().await;
    let stream = server.stream(COMPLETIONS, json!({"prompt": "x"})).await;
    let taken = double.take().await;
    taken.say("a").await;
    drop(stream);
    assert!(taken.abandoned().await);
}

#[tokio::test]
async fn a_complete_text_is_not_waited_for() {
    let (server, mut double) = Server::start().await;
    let stream = server.stream(COMPLETIONS, json!({"prompt": "x", "stream": true, "n": 2})).await;
    let (first, second) = (double.take().await, double.take().await);
    first.say("a").await;
    first.end(End::Length).await;
    second.say("b").await;
    second.end(End::Length).await;
    assert_eq!(stream.objects().await.len(), 4);
}

#[tokio::test]
async fn a_client_that_reads_nothing_is_ended_and_costs_a_bounded_number_of_events() {
    let (server, mut double) = Server::start_with(|app| app.limits.write_time = Duration::from_millis(50)).await;
    let stream = server.stream(COMPLETIONS, json!({"prompt": "x", "stream": true})).await;
    let taken = double.take().await;
    let (is_cancelled, sent) = taken.say_for_ever("all work and no play").await;
    assert!(is_cancelled);
    // What the kernel holds back is some megabytes, and each chunk has a hundred bytes or more.
    assert!((EVENTS_AHEAD..1 << 20).contains(&sent), "{sent}");
    drop(stream);
}

#[tokio::test]
async fn a_request_that_takes_too_long_ends_and_is_cancelled() {
    let (server, mut double) = Server::start_with(|app| app.limits.request_time = Duration::from_millis(50)).await;
    let mut whole = server.stream(COMPLETIONS, json!({"prompt": "x"})).await;
    let taken = double.take().await;
    let answer = whole.response().await;
    assert_eq!(answer.status, 504, "{answer:?}");
    assert_eq!(answer.json()["error"]["code"], "request_timeout");
    assert!(taken.abandoned().await);
    let mut stream = server.stream(COMPLETIONS, json!({"prompt": "x", "stream": true})).await;
    let taken = double.take().await;
    taken.say("a").await;
    assert_eq!(stream.head().await.status, 200);
    let error = loop {
        let object = stream.object().await;
        if object.get("error").is_some() {
            break object;
        }
    };
    assert_eq!(error["error"]["code"], "request_timeout");
    assert!(taken.abandoned().await);
}

#[tokio::test]
async fn bodies_have_a_bound_together() {
    let (server, mut double) = Server::start_with(|app| app.limits.bodies_bytes = 4096).await;
    // The first body never ends, and keeps its room.
    let mut first = Stream::connect(server.address).await;
    let head =
        "POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: 4001\r\n\r\n";
    first.write(format!("{head}{}", " ".repeat(4000)).as_bytes()).await;
    let refused = || async {
        let answer = server.post("/tokenize", json!({"prompt": "x"})).await;
        (answer.status == 429).then_some(answer)
    };
    let answer = loop {
        match refused().await {
            Some(answer) => break answer,
            None => tokio::task::yield_now().await,
        }
    };
    assert_eq!(answer.json()["error"]["code"], "too_many_bytes");
    drop(first);
    while refused().await.is_some() {
        tokio::task::yield_now().await;
    }
    assert!(double.is_idle());
}

#[tokio::test]
async fn announced_bodies_take_no_room() {
    let (server, _double) = Server::start_with(|app| app.limits.bodies_bytes = 4096).await;
    let head = "POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n";
    let mut waiting = Vec::new();
    for length in ["content-length: 100000", "transfer-encoding: chunked"] {
        let mut stream = Stream::connect(server.address).await;
        stream.write(format!("{head}{length}\r\n\r\n").as_bytes()).await;
        waiting.push(stream);
    }
    for _ in 0..20 {
        assert_eq!(server.post("/tokenize", json!({"prompt": "x"})).await.status, 200);
    }
}

#[tokio::test]
async fn bytes_that_are_no_request_end_their_connection_only() {
    let (server, _double) = Server::start().await;
    for garbage in
        [&b"\x16\x03\x01\x02\x00\x01\x00\r\n\r\n"[..], b"GET\r\n\r\n", b"\0\0\0\0\r\n\r\n", b"POST / HTTP/9.9\r\n\r\n"]
    {
        let mut stream = Stream::connect(server.address).await;
        stream.write(garbage).await;
        assert_eq!(stream.head().await.status, 400);
        assert!(stream.is_closed().await);
    }
    assert_eq!(get(server.address, "/ready").await.status, 200);
}

#[tokio::test]
async fn a_head_beyond_the_limit_is_refused() {
    let (server, _double) = Server::start_with(|app| app.limits.head_bytes = 8192).await;
    let head = format!("GET /health HTTP/1.1\r\nhost: x\r\nlong: {}\r\n\r\n", "x".repeat(10_000));
    assert_eq!(exchange_head(&server, &head).await, 431);
    let many: String = (0..200).map(|index| format!("h{index}: x\r\n")).collect();
    assert_eq!(exchange_head(&server, &format!("GET /health HTTP/1.1\r\nhost: x\r\n{many}\r\n")).await, 431);
}

async fn exchange_head(server: &Server, head: &str) -> u16 {
    exchange(server.address, head.as_bytes()).await.status
}

#[tokio::test]
async fn a_head_that_does_not_arrive_ends_its_connection() {
    let (server, _double) = Server::start_with(|app| app.limits.head_time = Duration::from_millis(20)).await;
    let mut stream = Stream::connect(server.address).await;
    stream.write(b"GET /health HT").await;
    // hyper closes the connection, or says first that the time is over.
    while !stream.is_closed().await {
        stream.response().await;
    }
}

#[tokio::test]
async fn an_idle_connection_is_closed() {
    let (server, _double) = Server::start_with(|app| app.limits.head_time = Duration::from_millis(20)).await;
    let mut stream = Stream::connect(server.address).await;
    stream.write(b"GET /ready HTTP/1.1\r\nhost: x\r\n\r\n").await;
    assert_eq!(stream.response().await.status, 200);
    assert!(stream.is_closed().await);
}

#[tokio::test]
async fn a_connection_takes_one_request_after_another() {
    let (server, engine) = Server::answering(|_| text("x")).await;
    let mut stream = Stream::connect(server.address).await;
    for index in 0..3 {
        let id = format!("x-request-id: mine-{index}\r\n");
        let body = json!({"prompt": "x", "stream": index == 1}).to_string();
        stream.write(posted(COMPLETIONS, &body, &id).as_bytes()).await;
        let reply = stream.response().await;
        assert_eq!((reply.status, reply.header("x-request-id")), (200, Some(&*format!("mine-{index}"))));
    }
    let requests = server.requests(engine).await;
    assert_eq!(&*requests[2].id, "mine-2");
}

#[tokio::test]
async fn a_request_without_a_name_gets_one() {
    let (server, _double) = Server::start().await;
    let reply = get(server.address, "/health").await;
    assert!(reply.header("x-request-id").unwrap().starts_with("req-"), "{reply:?}");
}

/// A limit of connections, none of which ends because nothing is sent.
fn with_connections(app: &mut App, connections: usize) {
    app.limits.connections = connections;
    app.limits.head_time = Duration::from_secs(3600);
    app.limits.body_time = Duration::from_secs(3600);
}

#[tokio::test]
async fn a_new_connection_takes_the_place_of_the_one_that_was_idle_longest() {
    let (server, _double) = Server::start_with(|app| with_connections(app, 2)).await;
    let ask = b"GET /health HTTP/1.1\r\nhost: x\r\n\r\n";
    let (mut first, mut second) = (Stream::connect(server.address).await, Stream::connect(server.address).await);
    for stream in [&mut second, &mut first] {
        stream.write(ask).await;
        assert_eq!(stream.response().await.status, 200);
    }
    assert_eq!(get(server.address, "/v1/models").await.status, 200);
    assert!(second.is_closed().await);
    first.write(ask).await;
    assert_eq!(first.response().await.status, 200);
}

#[tokio::test]
async fn clients_that_send_nothing_keep_none_out() {
    let (server, _double) = Server::start_with(|app| with_connections(app, 4)).await;
    let mut idle = Vec::new();
    let half =
        "POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: 9\r\n\r\n{";
    for sent in ["", "GET /health HT", half].iter().cycle().take(60) {
        let mut stream = Stream::connect(server.address).await;
        stream.write(sent.as_bytes()).await;
        idle.push(stream);
        if idle.len().is_multiple_of(10) {
            assert_eq!(get(server.address, "/v1/models").await.status, 200);
        }
    }
    for mut stream in idle.drain(..50) {
        assert!(stream.is_closed().await);
    }
}

#[tokio::test]
async fn while_requests_are_answered_on_all_connections_only_probes_are_answered_on_others() {
    let (server, mut double) = Server::start_with(|app| with_connections(app, 1)).await;
    let mut stream = server.stream(COMPLETIONS, json!({"prompt": "x", "stream": true})).await;
    let taken = double.take().await;
    taken.say("a").await;
    stream.head().await;
    for probe in ["/health", "/ready", "/metrics"] {
        let reply = get(server.address, probe).await;
        assert_eq!((reply.status, reply.header("connection")), (200, Some("close")), "{probe}");
    }
    let reply = get(server.address, "/v1/models").await;
    assert_eq!((reply.status, reply.header("retry-after")), (503, Some("5")));
    assert_eq!(reply.error()["code"], "too_many_connections");
    taken.end(End::Length).await;
    while stream.event().await.is_some() {}
    // Its client has read the last byte, so the server waits for it.
    assert_eq!(get(server.address, "/v1/models").await.status, 200);
    assert!(stream.is_closed().await);
}

#[tokio::test]
async fn after_many_clients_have_left_all_seats_are_free() {
    let (server, mut double) = Server::start_with(|app| app.limits.waiting_requests = 4).await;
    for round in 0..200 {
        let body = json!({"prompt": "x", "stream": round % 2 == 0, "n": 1 + round % 4});
        let mut stream = server.stream(COMPLETIONS, body).await;
        let mut taken = Vec::new();
        for _ in 0..1 + round % 4 {
            taken.push(double.take().await);
        }
        if round % 3 == 0 {
            taken[0].say("abc").await;
        }
        if round % 6 == 0 {
            stream.head().await;
        }
        drop(stream);
        for taken in taken {
            assert!(taken.abandoned().await);
        }
    }
    let last = server.stream(COMPLETIONS, json!({"prompt": "x", "n": 4})).await;
    double.take().await;
    drop(last);
}
