//! Web pages: names of the server, and origins.

use disco_serve::http::{BearerToken, Hosts};

use super::client::{Response, exchange};
use super::server::Server;

const PAGE: &str = "https://chat.example";

async fn ask(server: &Server, request: &str, headers: &str) -> Response {
    exchange(server.address, format!("{request} HTTP/1.1\r\nconnection: close\r\n{headers}\r\n").as_bytes()).await
}

#[tokio::test]
async fn a_request_to_another_name_of_the_server_is_refused() {
    let (server, _double) = Server::start_with(|app| app.hosts = Some(Hosts::new(&["disco.example".into()]))).await;
    for path in ["/v1/models", "/health", "/metrics", "/nothing"] {
        let reply = ask(&server, &format!("GET {path}"), "host: evil.example:8000\r\n").await;
        assert_eq!((reply.status, &reply.error()["code"]), (403, &"host_not_allowed".into()), "{path}");
        assert!(reply.error()["message"].as_str().unwrap().contains("evil.example"), "{reply:?}");
    }
    for name in ["localhost:8000", "127.0.0.1", "[::1]:8000", "disco.example"] {
        assert_eq!(ask(&server, "GET /v1/models", &format!("host: {name}\r\n")).await.status, 200, "{name}");
    }
    let two = ask(&server, "GET /v1/models", "host: localhost\r\nhost: evil.example\r\n").await;
    assert!([400, 403].contains(&two.status), "{two:?}");
}

#[tokio::test]
async fn pages_of_permitted_origins_may_use_the_server() {
    let (server, _double) = Server::start_with(|app| {
        app.origins = vec![PAGE.parse().unwrap(), "http://localhost:3000".parse().unwrap()];
        app.token = Some(BearerToken::new("secret").unwrap());
    })
    .await;
    let preflight = "access-control-request-method: POST\r\n\
                     access-control-request-headers: authorization,content-type,x-stainless-os\r\n";
    // The browser asks without the token.
    let asked = |origin: &str| format!("host: x\r\norigin: {origin}\r\n{preflight}");
    let reply = ask(&server, "OPTIONS /v1/chat/completions", &asked(PAGE)).await;
    let header = |name: &str| reply.header(name).unwrap().to_ascii_lowercase();
    assert_eq!((reply.status, header("access-control-allow-origin").as_str()), (200, PAGE));
    assert!(header("access-control-allow-methods").contains("post"));
    assert!(header("access-control-allow-headers").contains("authorization,content-type,x-stainless-os"));
    let refused = ask(&server, "OPTIONS /v1/chat/completions", &asked("https://evil.example")).await;
    assert_eq!(refused.header("access-control-allow-origin"), None);
    for (token, status) in [("secret", 200), ("wrong", 401)] {
        let headers = format!("host: x\r\norigin: {PAGE}\r\nauthorization: Bearer {token}\r\n");
        let reply = ask(&server, "GET /v1/models", &headers).await;
        assert_eq!((reply.status, reply.header("access-control-allow-origin")), (status, Some(PAGE)));
    }
}

#[tokio::test]
async fn without_permitted_origins_a_page_gets_no_permission() {
    let (server, _double) = Server::start().await;
    let headers = format!("host: x\r\norigin: {PAGE}\r\naccess-control-request-method: POST\r\n");
    let reply = ask(&server, "OPTIONS /v1/chat/completions", &headers).await;
    assert_eq!((reply.status, reply.header("access-control-allow-origin")), (405, None));
    let (all, _double) = Server::start_with(|app| app.origins = vec!["*".parse().unwrap()]).await;
    let reply = ask(&all, "OPTIONS /v1/chat/completions", &headers).await;
    assert_eq!((reply.status, reply.header("access-control-allow-origin")), (200, Some("*")));
}
