//! A client that sends and reads bytes.

use std::net::SocketAddr;

use serde_json::Value;
use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::net::TcpStream;

/// A whole response.
#[derive(Debug)]
pub(crate) struct Response {
    pub(crate) status: u16,
    headers: Vec<(String, String)>,
    pub(crate) body: String,
}

impl Response {
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(known, _)| known == name).map(|(_, value)| value.as_str())
    }

    pub(crate) fn json(&self) -> Value {
        serde_json::from_str(&self.body).unwrap_or_else(|error| panic!("{error}: {self:?}"))
    }

    /// The error object, with a check of its form.
    pub(crate) fn error(&self) -> Value {
        let error = self.json()["error"].clone();
        assert!(error["message"].is_string() && error["type"].is_string() && error["code"].is_string(), "{self:?}");
        assert!(error.as_object().unwrap().contains_key("param"), "{self:?}");
        error
    }
}

/// A request with a JSON body.
pub(crate) fn posted(path: &str, body: &str, headers: &str) -> String {
    let length = body.len();
    format!(
        "POST {path} HTTP/1.1\r\nhost: test\r\ncontent-type: application/json\r\ncontent-length: {length}\r\n{headers}\r\n{body}"
    )
}

pub(crate) async fn post(address: SocketAddr, path: &str, body: &str) -> Response {
    exchange(address, posted(path, body, "connection: close\r\n").as_bytes()).await
}

pub(crate) async fn get(address: SocketAddr, path: &str) -> Response {
    exchange(address, format!("GET {path} HTTP/1.1\r\nhost: test\r\nconnection: close\r\n\r\n").as_bytes()).await
}

/// Sends bytes, and reads one response.
pub(crate) async fn exchange(address: SocketAddr, request: &[u8]) -> Response {
    let mut stream = Stream::connect(address).await;
    stream.write(request).await;
    stream.response().await
}

/// A connection.
pub(crate) struct Stream {
    connection: BufReader<TcpStream>,
    /// Text of the body that was not returned yet.
    body: String,
}

impl Stream {
    pub(crate) async fn connect(address: SocketAddr) -> Self {
        Self { connection: BufReader::new(TcpStream::connect(address).await.unwrap()), body: String::new() }
    }

    pub(crate) async fn open(address: SocketAddr, path: &str, body: &str) -> Self {
        let mut stream = Self::connect(address).await;
        stream.write(posted(path, body, "").as_bytes()).await;
        stream
    }

    pub(crate) async fn write(&mut self, bytes: &[u8]) {
        // The server may have closed the connection before it has read all.
        let _ = self.connection.get_mut().write_all(bytes).await;
    }

    /// Reads a response to its end.
    pub(crate) async fn response(&mut self) -> Response {
        let mut response = self.head().await;
        match response.header("content-length").map(|length| length.parse::<usize>().unwrap()) {
            Some(length) => {
                let mut body = vec![0; length];
                self.connection.read_exact(&mut body).await.unwrap();
                response.body = String::from_utf8(body).unwrap();
            }
            None if response.header("transfer-encoding") == Some("chunked") => {
                while self.chunk().await {}
                response.body = std::mem::take(&mut self.body);
            }
            None => {}
        }
        response
    }

    /// Reads status and headers.
    pub(crate) async fn head(&mut self) -> Response {
        let status = self.line().await.split(' ').nth(1).map(|status| status.parse().unwrap());
        let mut headers = Vec::new();
        loop {
            let line = self.line().await;
            let Some((name, value)) = line.split_once(':') else { break };
            headers.push((name.to_ascii_lowercase(), value.trim().to_owned()));
        }
        Response { status: status.expect("a status line"), headers, body: String::new() }
    }

    /// The next event or comment of a stream; `None` at its end.
    pub(crate) async fn event(&mut self) -> Option<String> {
        loop {
            if let Some((event, rest)) = self.body.split_once("\n\n") {
                let event = event.to_owned();
                self.body = rest.to_owned();
                return Some(event);
            }
            if !self.chunk().await {
                assert_eq!(self.body, "", "an incomplete event");
                return None;
            }
        }
    }

    /// The object of the next event.
    pub(crate) async fn object(&mut self) -> Value {
        let event = self.event().await.expect("another event");
        serde_json::from_str(event.strip_prefix("data: ").unwrap()).unwrap_or_else(|error| panic!("{error}: {event}"))
    }

    /// The objects of all events up to the last one, which is `[DONE]`.
    pub(crate) async fn objects(mut self) -> Vec<Value> {
        let head = self.head().await;
        assert_eq!((head.status, head.header("content-type")), (200, Some("text/event-stream; charset=utf-8")));
        let mut objects = Vec::new();
        loop {
            let event = self.event().await.expect("[DONE]");
            if event == "data: [DONE]" {
                assert_eq!(self.event().await, None);
                return objects;
            }
            objects.push(serde_json::from_str(event.strip_prefix("data: ").unwrap()).unwrap());
        }
    }

    /// Whether the server has closed the connection, without another byte. Waits until it has or has sent something.
    pub(crate) async fn is_closed(&mut self) -> bool {
        matches!(self.connection.fill_buf().await, Ok([]) | Err(_))
    }

    /// Reads a chunk of the body; `false` at the end.
    async fn chunk(&mut self) -> bool {
        let length = self.line().await;
        let length = usize::from_str_radix(&length, 16).unwrap_or(0);
        let mut chunk = vec![0; length + 2];
        if self.connection.read_exact(&mut chunk).await.is_err() {
            return false;
        }
        self.body.push_str(std::str::from_utf8(&chunk[..length]).unwrap());
        length > 0
    }

    async fn line(&mut self) -> String {
        let mut line = String::new();
        self.connection.read_line(&mut line).await.unwrap_or(0);
        line.trim_end().to_owned()
    }
}
