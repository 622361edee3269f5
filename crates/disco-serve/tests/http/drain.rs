use std::time::Duration;

use disco_serve::engine::End;
use serde_json::json;

use super::client::get;
use super::server::Server;

const COMPLETIONS: &str = "/v1/completions";
const LONG: Duration = Duration::from_secs(3600);

#[tokio::test]
async fn a_server_without_requests_ends_at_once() {
    let (server, _double) = Server::start().await;
    let _idle = super::client::Stream::connect(server.address).await;
    server.drain.begin(LONG);
    server.task.await.unwrap();
}

#[tokio::test]
async fn a_drain_completes_what_runs_and_refuses_what_comes() {
    let (server, mut double) = Server::start().await;
    let stream = server.stream(COMPLETIONS, json!({"prompt": "x", "stream": true})).await;
    let taken = double.take().await;
    server.drain.begin(LONG);
    server.drain.begin(Duration::ZERO);
    let reply = server.post(COMPLETIONS, json!({"prompt": "x"})).await;
    assert_eq!((reply.status, reply.header("retry-after")), (503, Some("5")));
    let ready = get(server.address, "/ready").await;
    assert_eq!((ready.status, ready.header("retry-after")), (503, Some("5")));
    let health = get(server.address, "/health").await;
    assert_eq!((health.status, &health.json()["status"]), (200, &json!("draining")));
    taken.say("ab").await;
    taken.end(End::Length).await;
    assert_eq!(stream.objects().await.len(), 3);
    server.task.await.unwrap();
}

#[tokio::test]
async fn after_the_deadline_of_a_drain_requests_get_an_error() {
    let (server, mut double) = Server::start().await;
    let mut stream = server.stream(COMPLETIONS, json!({"prompt": "x", "stream": true})).await;
    let mut whole = server.stream(COMPLETIONS, json!({"prompt": "x"})).await;
    let taken = [double.take().await, double.take().await];
    assert_eq!(stream.head().await.status, 200);
    server.drain.begin(Duration::ZERO);
    assert_eq!(stream.object().await["error"]["code"], "shutting_down");
    assert_eq!(stream.event().await, None);
    assert_eq!(whole.response().await.status, 503);
    for taken in taken {
        assert!(taken.abandoned().await);
    }
    server.task.await.unwrap();
}

#[tokio::test]
async fn an_end_does_not_wait_for_the_drain() {
    let (server, mut double) = Server::start().await;
    let mut stream = server.stream(COMPLETIONS, json!({"prompt": "x", "stream": true})).await;
    let taken = double.take().await;
    server.drain.begin(LONG);
    server.drain.end();
    assert_eq!(stream.head().await.status, 200);
    assert_eq!(stream.object().await["error"]["type"], "service_unavailable_error");
    assert!(taken.abandoned().await);
    server.task.await.unwrap();
}

#[tokio::test]
async fn a_server_ends_while_a_client_reads_nothing() {
    let (server, mut double) = Server::start().await;
    let stream = server.stream(COMPLETIONS, json!({"prompt": "x", "stream": true})).await;
    let taken = double.take().await;
    let talk = tokio::spawn(async move { taken.say_for_ever("never read").await });
    server.drain.begin(Duration::ZERO);
    server.task.await.unwrap();
    assert!(talk.await.unwrap().0);
    drop(stream);
}
