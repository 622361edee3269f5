//! A hub on this machine: what `hf-hub` asks for, and the faults of real hubs.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::io::{BufRead, BufReader, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::thread;

/// A fault of a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    /// An answer with this status and an empty body.
    Status(u16),
    /// No answer, with the connection open.
    Silence,
    /// The connection ends in the middle of the file.
    Cut,
    /// A list of files that is no JSON.
    Garbage,
}

/// The files of the server, its fault, and the requests so far.
#[derive(Default)]
pub(crate) struct State {
    pub(crate) commit: String,
    pub(crate) files: BTreeMap<String, Vec<u8>>,
    /// The fault of a request whose path ends like this, and how often it still happens.
    pub(crate) fault: Option<(&'static str, Fault, usize)>,
    /// Paths of requests.
    pub(crate) asked: Vec<String>,
    /// The `Authorization` of the last request.
    pub(crate) authorization: Option<String>,
    /// Connections that get no answer.
    silent: Vec<TcpStream>,
}

/// A hub with one repository, `tiny/model`, until it is dropped.
pub(crate) struct Server {
    pub(crate) endpoint: String,
    pub(crate) state: Arc<Mutex<State>>,
}

impl Server {
    /// Serves the files.
    pub(crate) fn new(files: BTreeMap<String, Vec<u8>>) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let endpoint = format!("http://{}", listener.local_addr().unwrap());
        let state = Arc::new(Mutex::new(State { commit: "c0ffee".to_owned(), files, ..State::default() }));
        let of_thread = state.clone();
        thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let state = of_thread.clone();
                // A client that has gone ends its connection.
                thread::spawn(move || while answer(&stream, &state).is_some() {});
            }
        });
        Self { endpoint, state }
    }

    /// Paths of the requests since the last call.
    pub(crate) fn asked(&self) -> Vec<String> {
        std::mem::take(&mut self.state.lock().unwrap().asked)
    }

    /// Lets the next `times` requests whose path ends with `end` fail.
    pub(crate) fn fail(&self, end: &'static str, fault: Fault, times: usize) {
        self.state.lock().unwrap().fault = Some((end, fault, times));
    }
}

/// Answers one request; `None` ends the connection.
fn answer(mut stream: &TcpStream, state: &Mutex<State>) -> Option<()> {
    let mut lines = BufReader::new(stream).lines();
    let path = lines.next()?.ok()?.split(' ').nth(1)?.to_owned();
    let headers: BTreeMap<_, _> = lines
        .map_while(|line| line.ok().filter(|line| !line.is_empty()))
        .filter_map(|line| line.split_once(": ").map(|(name, value)| (name.to_lowercase(), value.to_owned())))
        .collect();
    let mut state = state.lock().unwrap();
    state.asked.push(path.clone());
    state.authorization = headers.get("authorization").cloned();
    let fault =
        state.fault.as_mut().filter(|(end, _, times)| path.ends_with(end) && *times > 0).map(|(_, fault, times)| {
            *times -= 1;
            fault.clone()
        });
    match &fault {
        Some(Fault::Status(status)) => return respond(stream, &format!("{status} Fault"), "", b"", 0),
        Some(Fault::Silence) => {
            state.silent.push(stream.try_clone().ok()?);
            return None;
        }
        Some(Fault::Garbage) => return respond(stream, "200 OK", "", b"<html>", 6),
        Some(Fault::Cut) | None => {}
    }
    if path.starts_with("/api/models/tiny/model/revision/") {
        let files: Vec<_> = state.files.keys().map(|name| serde_json::json!({ "rfilename": name })).collect();
        let list = serde_json::json!({ "sha": state.commit, "siblings": files }).to_string();
        return respond(stream, "200 OK", "Content-Type: application/json\r\n", list.as_bytes(), list.len());
    }
    let prefix = format!("/tiny/model/resolve/{}/", state.commit);
    let Some((name, bytes)) = path.strip_prefix(&prefix).and_then(|name| state.files.get_key_value(name)) else {
        return respond(stream, "404 Not Found", "", b"", 0);
    };
    let (first, last) = headers.get("range")?.strip_prefix("bytes=")?.split_once('-')?;
    let (first, last) = (first.parse::<usize>().ok()?, last.parse().unwrap_or(bytes.len() - 1));
    let part = &bytes[first..=last];
    let mut more = format!("Content-Range: bytes {first}-{last}/{}\r\n", bytes.len());
    write!(more, "ETag: \"{}-{}\"\r\nX-Repo-Commit: {}\r\n", name.replace('/', "-"), bytes.len(), state.commit).ok()?;
    let is_download = last > 0;
    let sent = if fault == Some(Fault::Cut) && is_download { &part[..part.len() / 2] } else { part };
    respond(stream, "206 Partial Content", &more, sent, part.len())?;
    if sent.len() < part.len() {
        stream.shutdown(Shutdown::Both).ok()?;
        return None;
    }
    stream.flush().ok()
}

/// Sends an answer; `None` if the client has gone.
fn respond(mut stream: &TcpStream, status: &str, headers: &str, body: &[u8], length: usize) -> Option<()> {
    let head = format!("HTTP/1.1 {status}\r\n{headers}Content-Length: {length}\r\n\r\n");
    stream.write_all(head.as_bytes()).ok()?;
    stream.write_all(body).ok()
}
