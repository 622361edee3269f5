//! A random mix of requests, of clients that leave and of workers that are killed or stopped at any moment.
//!
//! `DISCO_SEED` is the seed of the first server; each later server has the next one. A failure prints its seed.

use std::env;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, SystemTime};

use nix::sys::signal::{Signal, kill};
use serde_json::json;

use super::client::{completion, post, read};
use super::load::Load;
use super::random::Random;
use super::server::{Server, model};

/// Clients at the same time.
const CLIENTS: usize = 6;

/// Prints the seed of a failure.
pub(crate) struct Seed(pub(crate) u64);

impl Seed {
    /// `DISCO_SEED`, or else the time in long tests, and 1 in others.
    pub(crate) fn first() -> u64 {
        let given = env::var("DISCO_SEED").ok().and_then(|seed| seed.parse().ok());
        let is_long = env::var_os("DISCO_LONG_TESTS").is_some();
        given.unwrap_or_else(|| if is_long { SystemTime::UNIX_EPOCH.elapsed().unwrap().as_secs() } else { 1 })
    }
}

impl Drop for Seed {
    fn drop(&mut self) {
        if thread::panicking() {
            eprintln!("DISCO_SEED={}", self.0);
        }
    }
}

/// Sends a signal to a random worker, at any moment of a step.
fn disturb(server: &Server, random: &mut Random) {
    // The moment is random, as it would be outside of a test.
    random.pause(Duration::from_millis(20));
    let workers = server.workers();
    if !workers.is_empty() {
        // A worker that is stopped costs the deadline of a step.
        let signal = if random.chance(95) { Signal::SIGKILL } else { Signal::SIGSTOP };
        // The worker may have gone meanwhile.
        _ = kill(random.pick(&workers), signal);
    }
}

/// A server with random limits gets `requests` requests. At the end it is told to end while requests run.
fn round(seed: u64, requests: usize) {
    let _seed = Seed(seed);
    let mut random = Random::new(seed);
    let options = [
        ["--step-deadline", "2"],
        ["--max-num-seqs", random.pick(&["2", "4", "8"])],
        ["--ngram-drafts", random.pick(&["0", "3", "16"])],
        ["--max-num-batched-tokens", random.pick(&["4", "16", "512"])],
        // 13 blocks, 32 blocks, or enough for all.
        ["--kv-cache-bytes", random.pick(&["26K", "64K", "4M"])],
    ];
    let server = Server::start(&model("llama-3"), options.as_flattened());
    let load = Load::new(*server, &mut random);
    let is_over = AtomicBool::new(false);
    thread::scope(|scope| {
        let clients: Vec<_> = (0..CLIENTS)
            .map(|_| {
                let (mut random, load) = (random.fork(), &load);
                scope.spawn(move || (0..requests / CLIENTS).for_each(|_| load.request(&mut random)))
            })
            .collect();
        let (mut random, server, load, is_over) = (random.fork(), &server, &load, &is_over);
        scope.spawn(move || {
            while !is_over.load(Ordering::Relaxed) {
                disturb(server, &mut random);
                // Now and then while workers are replaced.
                let pause = if random.chance(10) { 0 } else { 5 + random.below(30) };
                let next = load.answers.load(Ordering::Relaxed) + pause;
                server.wait_until("answers", || {
                    load.answers.load(Ordering::Relaxed) >= next || is_over.load(Ordering::Relaxed)
                });
            }
        });
        let ended: Vec<_> = clients.into_iter().map(|client| client.join()).collect();
        is_over.store(true, Ordering::Relaxed);
        assert!(ended.iter().all(Result::is_ok), "a client has failed");
    });
    load.wait_until_nothing_is_left();
    let [complete, given_up] = [&load.complete, &load.given_up].map(|counter| counter.load(Ordering::Relaxed));
    let repairs = server.metric("disco_serve_repairs_total").unwrap();
    eprintln!("seed {seed}, {options:?}: {complete} complete texts, {given_up} given up, {repairs} repairs");
    assert!(complete > 10 * given_up, "{given_up} texts were given up, {complete} are complete");
    drain(server, &mut random);
}

/// The server ends after the requests that run, although a worker is lost meanwhile.
fn drain(server: Server, random: &mut Random) {
    let body = completion("The river was", 150, json!({"ignore_eos": true, "stream": true}));
    let ask = || server.post("/v1/completions", &body);
    // The last kill may still be under repair.
    let text = std::iter::repeat_with(ask).find(|answer| answer.status != 503).unwrap().text();
    let streams: Vec<_> = (0..3).map(|_| server.begin(&post("/v1/completions", &body))).collect();
    for stream in &streams {
        // Until the server has taken the request.
        stream.peek(&mut [0]).unwrap();
    }
    server.signal(Signal::SIGTERM);
    disturb(&server, random);
    for stream in streams {
        assert_eq!(read(stream).text(), text);
    }
    let (status, said) = server.ended();
    assert!(status.success(), "{status}: {said}");
}

#[test]
fn a_random_mix_of_requests_and_lost_workers_keeps_all_texts() {
    let (rounds, requests) = if env::var_os("DISCO_LONG_TESTS").is_some() { (25, 400) } else { (1, 60) };
    let first = Seed::first();
    (first..first + rounds).for_each(|seed| round(seed, requests));
}
