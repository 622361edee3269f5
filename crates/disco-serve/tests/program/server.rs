//! The program, and requests to it.

use std::fs;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStderr, Command, ExitStatus, Stdio};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::{Value as Json, json};

/// How long anything may take.
const LIMIT: Duration = Duration::from_secs(60);

/// The folder of a small model.
pub(crate) fn model(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../disco-models/tests/models").join(name)
}

/// A server, which ends with this value.
pub(crate) struct Server {
    child: Child,
    pub(crate) address: SocketAddr,
    log: Option<JoinHandle<String>>,
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
        assert_eq!(self.status, 200, "{}", self.body);
        let of = |body: &Json| body["choices"][0]["text"].as_str().unwrap_or_default().to_owned();
        if self.body.starts_with('{') {
            return of(&self.json());
        }
        assert!(self.body.ends_with("data: [DONE]\n\n"), "{}", self.body);
        let data = self.body.lines().filter_map(|line| line.strip_prefix("data: {"));
        data.map(|data| of(&serde_json::from_str(&format!("{{{data}")).unwrap())).collect()
    }
}

impl Server {
    /// Starts a server of 2 workers, and waits until it is ready.
    pub(crate) fn start(model: &Path, options: &[&str]) -> Self {
        let server = Self::listening(model, options);
        server.wait_until("the server is ready", || server.get("/ready").status == 200);
        server
    }

    /// Starts a server of 2 workers, and waits until it listens.
    pub(crate) fn listening(model: &Path, options: &[&str]) -> Self {
        let mut command = Command::new(env!("CARGO_BIN_EXE_disco-serve"));
        command.args(["--port", "0", "--workers", "2", "--threads", "1", "--dtype", "f32", "--model"]).arg(model);
        command.args(options).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
        // A variable that the tests' own environment may have.
        let mut child = command.env_remove("DISCO_SERVE_TOKEN").spawn().unwrap();
        let mut log = BufReader::new(child.stderr.take().unwrap());
        let mut said = String::new();
        let address = loop {
            let mut line = String::new();
            assert_ne!(log.read_line(&mut line).unwrap(), 0, "the server has ended: {said}");
            said += &line;
            if let Some(address) = line.trim().strip_prefix("disco-serve: http://") {
                break address.trim_end_matches("/v1").parse().unwrap();
            }
        };
        let log = thread::spawn(move || rest(log, said));
        Self { child, address, log: Some(log) }
    }

    pub(crate) fn wait_until(&self, what: &str, mut is_so: impl FnMut() -> bool) {
        let start = Instant::now();
        while !is_so() {
            assert!(start.elapsed() < LIMIT, "{what}: not after {LIMIT:?}");
            thread::sleep(Duration::from_millis(5));
        }
    }

    pub(crate) fn get(&self, path: &str) -> Answer {
        self.exchange(&format!("GET {path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n"))
    }

    pub(crate) fn post(&self, path: &str, body: &Json) -> Answer {
        self.exchange(&post(path, body))
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

    /// The processes of the workers, in the order of their start.
    pub(crate) fn workers(&self) -> Vec<Pid> {
        let mut children: Vec<i32> = Vec::new();
        for task in fs::read_dir(format!("/proc/{}/task", self.child.id())).unwrap() {
            let text = fs::read_to_string(task.unwrap().path().join("children")).unwrap_or_default();
            children.extend(text.split_whitespace().map(|pid| pid.parse::<i32>().unwrap()));
        }
        children.sort_unstable();
        children.into_iter().map(Pid::from_raw).collect()
    }

    pub(crate) fn id(&self) -> u32 {
        self.child.id()
    }

    pub(crate) fn signal(&self, signal: Signal) {
        kill(Pid::from_raw(self.child.id() as i32), signal).unwrap();
    }

    /// Waits for the end of the program. Returns its status and what it has said.
    pub(crate) fn ended(mut self) -> (ExitStatus, String) {
        let start = Instant::now();
        let status = loop {
            if let Some(status) = self.child.try_wait().unwrap() {
                break status;
            }
            assert!(start.elapsed() < LIMIT, "the server has not ended");
            thread::sleep(Duration::from_millis(5));
        };
        (status, self.log.take().unwrap().join().unwrap())
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        if let (Some(log), true) = (self.log.take(), thread::panicking()) {
            eprintln!("{}", log.join().unwrap());
        }
    }
}

fn rest(mut log: BufReader<ChildStderr>, mut said: String) -> String {
    let _ = log.read_to_string(&mut said);
    said
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
        "POST {path} HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\nconnection: close\r\ncontent-length: {length}\r\n\r\n{body}"
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
