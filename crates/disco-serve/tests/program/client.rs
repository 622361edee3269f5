//! Requests to a server, and their answers.

use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::thread;
use std::time::{Duration, Instant};

use serde_json::{Value as Json, json};

/// How long anything may take.
pub(crate) const LIMIT: Duration = Duration::from_secs(60);

/// The address of a server.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Client {
    pub(crate) address: SocketAddr,
}

/// An answer: its status and its body.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Answer {
    pub(crate) status: u16,
    pub(crate) body: String,
}

impl Answer {
    pub(crate) fn json(&self) -> Json {
        serde_json::from_str(&self.body).unwrap_or_else(|error| panic!("{error}: {}", self.body))
    }

    /// The text of the first choice, whole or as a stream.
    pub(crate) fn text(&self) -> String {
        self.texts().unwrap_or_else(|error| panic!("{error}")).swap_remove(0)
    }

    /// The texts of all choices, whole or as a stream.
    ///
    /// # Errors
    /// The answer is an error, or the stream ends with one: its message.
    pub(crate) fn texts(&self) -> Result<Vec<String>, String> {
        let message = |body: &Json| body["error"]["message"].as_str().map(str::to_owned);
        let mut texts = Vec::new();
        let mut add = |body: &Json| {
            for choice in body["choices"].as_array().into_iter().flatten() {
                let index = choice["index"].as_u64().unwrap() as usize;
                texts.resize(texts.len().max(index + 1), String::new());
                texts[index] += choice["text"].as_str().unwrap();
            }
        };
        if self.status != 200 {
            return Err(message(&self.json()).unwrap_or_else(|| self.body.clone()));
        }
        if self.body.starts_with('{') {
            add(&self.json());
            return Ok(texts);
        }
        for data in self.body.lines().filter_map(|line| line.strip_prefix("data: {")) {
            let data = serde_json::from_str(&format!("{{{data}")).unwrap();
            message(&data).map_or(Ok(()), Err)?;
            add(&data);
        }
        assert!(self.body.ends_with("data: [DONE]\n\n"), "{}", self.body);
        Ok(texts)
    }
}

impl Client {
    pub(crate) fn wait_until(&self, what: &str, mut is_so: impl FnMut() -> bool) {
        let start = Instant::now();
        while !is_so() {
            assert!(start.elapsed() < LIMIT, "{what}: not after {LIMIT:?}");
            thread::sleep(Duration::from_millis(5));
        }
    }

    pub(crate) fn get(&self, path: &str) -> Answer {
        self.exchange(&format!("GET {path} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n"))
    }

    pub(crate) fn post(&self, path: &str, body: &Json) -> Answer {
        self.exchange(&post(path, body))
    }

    /// The value of a metric of the server.
    pub(crate) fn metric(&self, name: &str) -> Option<f64> {
        let metrics = self.get("/metrics").body;
        let line = metrics.lines().find(|line| line.strip_prefix(name).is_some_and(|rest| rest.starts_with('{')));
        line.and_then(|line| line.rsplit(' ').next()?.parse().ok())
    }

    /// A greedy text of a prompt.
    pub(crate) fn complete(&self, prompt: &str, tokens: usize, more: Json) -> Answer {
        self.post("/v1/completions", &completion(prompt, tokens, more))
    }

    /// Sends a request without reading its answer.
    pub(crate) fn begin(&self, request: &str) -> TcpStream {
        let mut stream = TcpStream::connect(self.address).unwrap();
        stream.set_read_timeout(Some(LIMIT)).unwrap();
        stream.write_all(request.as_bytes()).unwrap();
        stream
    }

    fn exchange(&self, request: &str) -> Answer {
        read(self.begin(request))
    }
}

/// A request for a greedy text.
pub(crate) fn completion(prompt: &str, tokens: usize, more: Json) -> Json {
    let mut body = json!({ "prompt": prompt, "max_tokens": tokens, "temperature": 0 });
    let more = more.as_object().unwrap().clone();
    body.as_object_mut().unwrap().extend(more);
    body
}

/// The bytes of a request.
pub(crate) fn post(path: &str, body: &Json) -> String {
    let body = body.to_string();
    let length = body.len();
    format!(
        "POST {path} HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\nconnection: close\r\ncontent-length: {length}\r\n\r\n{body}"
    )
}

/// The rest of an answer.
pub(crate) fn read(mut stream: TcpStream) -> Answer {
    let mut bytes = Vec::new();
    stream.read_to_end(&mut bytes).unwrap();
    let text = String::from_utf8(bytes).unwrap();
    let (head, body) = text.split_once("\r\n\r\n").unwrap_or_else(|| panic!("no head: {text:?}"));
    let status = head.split(' ').nth(1).unwrap().parse().unwrap();
    let is_chunked = head.to_ascii_lowercase().contains("transfer-encoding: chunked");
    Answer { status, body: if is_chunked { unchunked(body) } else { body.to_owned() } }
}

fn unchunked(mut body: &str) -> String {
    let mut whole = String::new();
    while let Some((size, rest)) = body.split_once("\r\n") {
        let size = usize::from_str_radix(size, 16).unwrap();
        whole += &rest[..size];
        body = rest[size..].strip_prefix("\r\n").unwrap();
    }
    whole
}
