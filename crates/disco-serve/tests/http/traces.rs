//! Spans of requests, and collectors that are there, absent or silent.

use std::net::TcpListener;
use std::time::Duration;

use disco_serve::engine::{End, Event};
use disco_serve::http::App;
use disco_serve::trace::otlp::{Endpoint, Exporter, Options};
use serde_json::{Value, json};

use super::client::{Stream, exchange, get, posted};
use super::collector::{Collector, attributes, time};
use super::double::text;
use super::server::Server;
use crate::recorder;

const CHAT: &str = "/v1/chat/completions";
const COMPLETIONS: &str = "/v1/completions";
/// The trace of a client and its span.
const TRACE: &str = "4bf92f3577b34da6a3ce929d0e0e4736";
const PARENT: &str = "00f067aa0ba902b7";
/// Longer than any test.
const FOREVER: Duration = Duration::from_secs(3600);

/// Times of tests: spans are sent at once, and no time passes between attempts.
fn options() -> Options {
    Options { gather: Duration::ZERO, pause: Duration::ZERO, ..Options::default() }
}

fn exporter(url: &str, options: Options) -> Exporter {
    start(Endpoint::new(url, |_| None).unwrap(), options)
}

fn start(endpoint: Endpoint, options: Options) -> Exporter {
    // Counters go to the recorder that is there when they are made.
    recorder();
    Exporter::start(endpoint, options).unwrap()
}

fn to(exporter: &Exporter) -> impl FnOnce(&mut App) {
    let queue = exporter.queue();
    move |app| app.spans = Some(queue)
}

/// A request with the trace of a client.
fn traced(path: &str, body: &Value, flags: &str) -> String {
    posted(path, &body.to_string(), &format!("traceparent: 00-{TRACE}-{PARENT}-{flags}\r\ntracestate: a=1\r\n"))
}

/// The spans of a trace.
async fn read(mut collector: Collector, trace: &str) -> (Collector, Vec<Value>) {
    let trace = trace.to_owned();
    let read = move || {
        let spans = collector.trace(&trace);
        (collector, spans)
    };
    tokio::task::spawn_blocking(read).await.unwrap()
}

/// The sum of a counter of spans.
async fn count(server: &Server, name: &str) -> u64 {
    let metrics = get(server.address, "/metrics").await.body;
    let value = metrics.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' ')?.parse().ok());
    value.unwrap_or(0)
}

/// Waits until a counter of spans is larger than before.
async fn grown(server: &Server, name: &str, before: u64) {
    let grows = async {
        while count(server, name).await <= before {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(60), grows).await.unwrap();
}

#[tokio::test]
async fn a_request_is_a_span_with_its_parts_in_the_trace_of_its_client() {
    let collector = Collector::start(&[]);
    let exporter = exporter(&collector.url, options());
    let (server, mut double) = Server::start_with(to(&exporter)).await;
    let body = json!({
        "messages": [{"role": "user", "content": "x"}],
        "model": "tiny", "max_tokens": 5, "temperature": 0.5, "seed": -1, "stop": "zz", "stream": true,
    });
    let mut stream = Stream::connect(server.address).await;
    stream.write(traced(CHAT, &body, "01").as_bytes()).await;
    let taken = double.take().await;
    taken.send(Event::Begun { cached: 2 }).await;
    taken.say("ab").await;
    taken.send(Event::Lost { why: "worker 1 is lost".into() }).await;
    taken.send(Event::Replaced).await;
    taken.say("c").await;
    let prompt = taken.request().prompt.len();
    taken.end(End::Length).await;
    let head = stream.head().await;
    let mut id = String::new();
    while let Some(event) = stream.event().await {
        if let Some(chunk) = event.strip_prefix("data: {").map(|rest| format!("{{{rest}")) {
            id = serde_json::from_str::<Value>(&chunk).unwrap()["id"].as_str().unwrap().to_owned();
        }
    }
    let (_, spans) = read(collector, TRACE).await;
    let [whole, waiting, generating @ ..] = &spans[..] else { panic!("{spans:?}") };
    let [reading, generation] = generating else { panic!("{spans:?}") };
    let response = format!("00-{TRACE}-{}-01", whole["spanId"].as_str().unwrap());
    assert_eq!(head.header("traceresponse"), Some(response.as_str()));
    assert_eq!(
        (&whole["parentSpanId"], &whole["traceState"], &whole["kind"]),
        (&json!(PARENT), &json!("a=1"), &json!(2))
    );
    assert_eq!((&whole["name"], &whole["flags"], whole.get("status")), (&json!("chat tiny"), &json!(0x301), None));
    let names = [waiting, reading, generation].map(|span| span["name"].as_str().unwrap());
    assert_eq!(names, ["waiting", "prompt", "generation"]);
    for span in [waiting, reading, generation] {
        assert_eq!(
            (&span["parentSpanId"], &span["traceId"], &span["kind"]),
            (&whole["spanId"], &json!(TRACE), &json!(1))
        );
    }
    let times = [(whole, "start"), (waiting, "start"), (waiting, "end"), (reading, "start"), (reading, "end")];
    let times = times.into_iter().chain([(generation, "start"), (generation, "end"), (whole, "end")]);
    let times: Vec<_> = times.map(|(span, end)| time(span, &format!("{end}TimeUnixNano"))).collect();
    assert!(times.is_sorted(), "{times:?}");
    let mut found = attributes(whole);
    assert!(found["disco.request.id"].is_string());
    found.as_object_mut().unwrap().remove("disco.request.id");
    assert_eq!(
        found,
        json!({
            "gen_ai.operation.name": "chat", "gen_ai.provider.name": "disco", "gen_ai.request.model": "tiny",
            "gen_ai.request.max_tokens": 5, "gen_ai.request.temperature": 0.5, "gen_ai.request.top_p": 1.0,
            "gen_ai.request.frequency_penalty": 0.0, "gen_ai.request.presence_penalty": 0.0, "gen_ai.request.seed": -1,
            "gen_ai.request.stop_sequences": ["zz"], "gen_ai.request.stream": true,
            "gen_ai.response.id": id, "gen_ai.response.model": "tiny", "gen_ai.response.finish_reasons": ["length"],
            "gen_ai.usage.input_tokens": prompt, "gen_ai.usage.output_tokens": 3, "gen_ai.usage.cache_read.input_tokens": 2,
            "http.request.method": "POST", "http.route": CHAT, "http.response.status_code": 200,
        })
    );
    let events = whole["events"].as_array().unwrap();
    assert_eq!([&events[0]["name"], &events[1]["name"]], ["workers lost", "workers replaced"]);
    assert_eq!(attributes(&events[0]), json!({"exception.message": "worker 1 is lost"}));
    let times = [time(&events[0], "timeUnixNano"), time(&events[1], "timeUnixNano"), time(whole, "endTimeUnixNano")];
    assert!(times.is_sorted());
}

#[tokio::test]
async fn spans_say_why_requests_have_no_texts() {
    let collector = Collector::start(&[]);
    let exporter = exporter(&collector.url, options());
    let (server, mut double) = Server::start_with(to(&exporter)).await;
    let refused = exchange(server.address, traced(COMPLETIONS, &json!({"prompt": "x", "n": 0}), "01").as_bytes()).await;
    assert_eq!((refused.status, refused.header("traceresponse").is_some()), (400, true));
    let (collector, spans) = read(collector, TRACE).await;
    let found = attributes(&spans[0]);
    assert_eq!((spans.len(), &found["error.type"]), (1, &json!("invalid_value")));
    assert_eq!((&found["http.response.status_code"], spans[0].get("status")), (&json!(400), None));
    // A client that leaves.
    let mut stream = Stream::connect(server.address).await;
    stream.write(traced(COMPLETIONS, &json!({"prompt": "x"}), "01").as_bytes()).await;
    let taken = double.take().await;
    drop(stream);
    taken.abandoned().await;
    let (collector, spans) = read(collector, TRACE).await;
    assert_eq!((spans.len(), &attributes(&spans[0])["error.type"]), (2, &json!("cancelled")));
    // An engine that fails.
    let mut stream = Stream::connect(server.address).await;
    stream.write(traced(COMPLETIONS, &json!({"prompt": "x"}), "01").as_bytes()).await;
    drop(double.take().await);
    assert_eq!(stream.response().await.status, 500);
    let (_, spans) = read(collector, TRACE).await;
    assert_eq!(attributes(&spans[0])["error.type"], "internal_error");
    assert_eq!(spans[0]["status"], json!({"code": 2, "message": "the reply can't be completed: the engine has ended"}));
}

#[tokio::test]
async fn vectors_and_scores_have_one_span() {
    let collector = Collector::start(&[]);
    let exporter = exporter(&collector.url, options());
    let server = Server::encoding("bert-mean", to(&exporter)).await;
    let body = json!({"input": "river", "dimensions": 1, "user": "me"});
    let reply = exchange(server.address, traced("/v1/embeddings", &body, "01").as_bytes()).await;
    let tokens = reply.json()["usage"]["prompt_tokens"].clone();
    let (mut collector, spans) = read(collector, TRACE).await;
    let found = attributes(&spans[0]);
    assert_eq!((spans.len(), &spans[0]["name"]), (1, &json!("embeddings tiny")));
    assert_eq!(
        (&found["gen_ai.usage.input_tokens"], &found["gen_ai.embeddings.dimension.count"]),
        (&tokens, &json!(1))
    );
    let server = Server::encoding("xlm-roberta-reranker", to(&exporter)).await;
    for (path, name, body) in [
        ("/rerank", "rerank tiny", json!({"query": "river", "documents": ["sea"]})),
        ("/score", "score tiny", json!({"text_1": "river", "text_2": "sea"})),
    ] {
        let reply = exchange(server.address, traced(path, &body, "01").as_bytes()).await;
        assert_eq!(reply.status, 200, "{reply:?}");
        let spans;
        (collector, spans) = read(collector, TRACE).await;
        assert_eq!((spans.len(), &spans[0]["name"]), (1, &json!(name)));
    }
}

#[tokio::test]
async fn a_trace_that_its_client_does_not_record_is_only_answered() {
    let collector = Collector::start(&[]);
    let exporter = exporter(&collector.url, options());
    let (server, double) = Server::start_with(to(&exporter)).await;
    tokio::spawn(double.answer_all(|_| text("x")));
    let reply = exchange(server.address, traced(COMPLETIONS, &json!({"prompt": "x"}), "00").as_bytes()).await;
    let response = reply.header("traceresponse").unwrap();
    assert!(response.starts_with(&format!("00-{TRACE}-")) && response.ends_with("-00"), "{response}");
    // Without a trace of the client, the request begins one.
    let reply = server.post(COMPLETIONS, json!({"prompt": "x"})).await;
    let own = reply.header("traceresponse").unwrap()[3..35].to_owned();
    let (_, spans) = read(collector, &own).await;
    // This engine says nothing about the prompt.
    assert_eq!((spans.len(), spans[0].get("parentSpanId"), &spans[0]["flags"]), (3, None, &json!(0x101)));
}

#[tokio::test]
async fn a_server_without_a_collector_answers_no_trace() {
    let (server, _engine) = Server::answering(|_| text("x")).await;
    let reply = exchange(server.address, traced(COMPLETIONS, &json!({"prompt": "x"}), "01").as_bytes()).await;
    assert_eq!((reply.status, reply.header("traceresponse")), (200, None));
}

#[tokio::test]
async fn spans_are_sent_again_after_a_refusal_that_passes_and_those_that_are_rejected_are_counted() {
    let collector =
        Collector::start(&[(503, ""), (200, r#"{"partialSuccess": {"rejectedSpans": "2", "errorMessage": "no"}}"#)]);
    let variables = |name: &str| (name == "OTEL_EXPORTER_OTLP_HEADERS").then(|| "x-key=secret".to_owned());
    let endpoint = Endpoint::new(&collector.url, variables).unwrap();
    let exporter = start(endpoint, options());
    let (server, double) = Server::start_with(to(&exporter)).await;
    tokio::spawn(double.answer_all(|_| text("x")));
    let dropped = "disco_serve_spans_dropped_total{reason=\"collector\"}";
    let before = [count(&server, dropped).await, count(&server, "disco_serve_spans_exported_total").await];
    server.post(COMPLETIONS, json!({"prompt": "x"})).await;
    grown(&server, dropped, before[0] + 1).await;
    grown(&server, "disco_serve_spans_exported_total", before[1]).await;
    let [first, second] = [collector.received(), collector.received()];
    assert_eq!(first.body, second.body);
    let head = first.head.to_ascii_lowercase();
    assert!(head.starts_with("post /v1/traces http/1.1\r\n") && head.contains("\r\nx-key: secret\r\n"), "{head}");
    assert!(head.contains("\r\ncontent-type: application/json\r\n"), "{head}");
    assert_eq!(attributes(&first.body["resourceSpans"][0]["resource"])["service.name"], "disco-serve");
    drop(server);
}

#[tokio::test]
async fn an_absent_collector_costs_spans_and_no_request() {
    let address = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let exporter = exporter(&format!("http://{address}"), options());
    let (server, double) = Server::start_with(to(&exporter)).await;
    tokio::spawn(double.answer_all(|_| text("x")));
    let dropped = "disco_serve_spans_dropped_total{reason=\"collector\"}";
    let before = count(&server, dropped).await;
    for _ in 0..5 {
        assert_eq!(server.post(COMPLETIONS, json!({"prompt": "x"})).await.status, 200);
    }
    grown(&server, dropped, before + 14).await;
    server.drain.end();
    server.task.await.unwrap();
    assert!(exporter.end(FOREVER), "nothing keeps the thread");
}

#[tokio::test]
async fn a_collector_that_never_answers_costs_spans_and_no_request() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let exporter = exporter(&url, Options { timeout: FOREVER, queue: 2, ..options() });
    let (server, double) = Server::start_with(to(&exporter)).await;
    tokio::spawn(double.answer_all(|_| text("x")));
    let dropped = "disco_serve_spans_dropped_total{reason=\"queue\"}";
    let before = count(&server, dropped).await;
    assert_eq!(server.post(COMPLETIONS, json!({"prompt": "x"})).await.status, 200);
    // The thread waits for an answer.
    let (_silent, _) = tokio::task::spawn_blocking(move || listener.accept()).await.unwrap().unwrap();
    for _ in 0..5 {
        assert_eq!(server.post(COMPLETIONS, json!({"prompt": "x"})).await.status, 200);
    }
    grown(&server, dropped, before + 8).await;
    server.drain.end();
    server.task.await.unwrap();
    assert!(!exporter.end(Duration::ZERO), "the end does not wait for the collector");
}
