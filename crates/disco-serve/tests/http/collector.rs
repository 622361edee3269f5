//! A collector of OpenTelemetry, which answers as a test says.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::sync::mpsc::{Receiver, channel};
use std::thread;
use std::time::Duration;

use serde_json::{Value, json};

/// The longest time that a test waits for spans.
const LIMIT: Duration = Duration::from_secs(60);

pub(crate) struct Collector {
    pub(crate) url: String,
    bodies: Receiver<Received>,
    /// Spans that were received and not taken.
    spans: Vec<Value>,
}

/// One request.
pub(crate) struct Received {
    pub(crate) head: String,
    pub(crate) body: Value,
}

impl Collector {
    /// A collector whose answers begin with these ones, of a status and a body; all others take what comes.
    pub(crate) fn start(answers: &[(u16, &str)]) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let (sender, bodies) = channel();
        let mut answers =
            answers.iter().map(|(status, body)| (*status, (*body).to_owned())).collect::<Vec<_>>().into_iter();
        thread::spawn(move || {
            for connection in listener.incoming() {
                let mut connection = BufReader::new(connection.unwrap());
                while let Some(received) = read(&mut connection) {
                    let (status, body) = answers.next().unwrap_or((200, "{}".to_owned()));
                    let head = format!("HTTP/1.1 {status} Status\r\ncontent-length: {}\r\n\r\n", body.len());
                    // The test may be over.
                    _ = sender.send(received);
                    _ = connection.get_mut().write_all(format!("{head}{body}").as_bytes());
                }
            }
        });
        Self { url, bodies, spans: Vec::new() }
    }

    /// The next request.
    pub(crate) fn received(&self) -> Received {
        self.bodies.recv_timeout(LIMIT).expect("a request with spans")
    }

    /// The spans of a trace, in the order of their times, once its request is complete.
    pub(crate) fn trace(&mut self, id: &str) -> Vec<Value> {
        loop {
            let is_of_trace = |span: &Value| span["traceId"] == id;
            if self.spans.iter().any(is_of_trace) {
                return self.spans.extract_if(.., |span| is_of_trace(span)).collect();
            }
            let body = self.received().body;
            self.spans.extend(body["resourceSpans"][0]["scopeSpans"][0]["spans"].as_array().unwrap().iter().cloned());
        }
    }
}

fn read(connection: &mut BufReader<TcpStream>) -> Option<Received> {
    let mut head = String::new();
    while !head.ends_with("\r\n\r\n") {
        if connection.read_line(&mut head).ok()? == 0 {
            return None;
        }
    }
    let lines = head.to_ascii_lowercase();
    let length = lines.lines().find_map(|line| line.strip_prefix("content-length: ")).unwrap().parse().unwrap();
    let mut body = vec![0; length];
    connection.read_exact(&mut body).unwrap();
    Some(Received { head, body: serde_json::from_slice(&body).unwrap() })
}

/// The attributes of a span, of an event or of a program, as plain JSON.
pub(crate) fn attributes(of: &Value) -> Value {
    let plain = |value: &Value| match value.as_object().unwrap().iter().next().unwrap() {
        (kind, Value::String(number)) if kind == "intValue" => json!(number.parse::<i64>().unwrap()),
        (kind, value) if kind == "arrayValue" => {
            value["values"].as_array().unwrap().iter().map(|value| value["stringValue"].clone()).collect()
        }
        (_, value) => value.clone(),
    };
    let pairs = of["attributes"].as_array().unwrap().iter();
    Value::Object(pairs.map(|pair| (pair["key"].as_str().unwrap().to_owned(), plain(&pair["value"]))).collect())
}

/// Nanoseconds of a time.
pub(crate) fn time(of: &Value, name: &str) -> u64 {
    of[name].as_str().unwrap().parse().unwrap()
}
