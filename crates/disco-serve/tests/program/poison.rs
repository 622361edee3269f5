//! Prompts that their workers don't survive. The engine and the HTTP layer run in this process, and the worker function of
//! a step is one of this file, which calls the product's.

#![allow(unsafe_code)] // A worker that damages its memory, on purpose.

use std::net::TcpListener;
use std::sync::Arc;
use std::thread::{self, JoinHandle};
use std::time::Duration;

use disco::Builder;
use disco_candle::weights::Weights;
use disco_core::function::{self, Args, BoxError};
use disco_core::{Object, Value, WorkerContext};
use disco_models::serving::{Plan, Serve, Tokens};
use disco_models::text::Text;
use disco_models::worker::Load;
use disco_models::{Config, Precision};
use disco_serve::engine::{self, Options, Placement, Read, STEP, schedule};
use disco_serve::health::Health;
use disco_serve::http::{App, Drain, Limits, Model, serve};
use serde_json::{Value as Json, json};

use super::client::{Client, completion};
use super::random::Random;
use super::server::model;
use crate::recorder;

/// A token that makes worker 1 abort.
const ABORTS: u32 = 500;
/// A token that makes worker 1 panic.
const PANICS: u32 = 501;
/// A token that makes worker 1 write all over its memory, and end by that.
const SCRIBBLES: u32 = 502;
const BLOCKS: u32 = 64;
const SEQUENCES: u32 = 4;
const CONTEXT: usize = 256;

disco::register_function!("tests.poisoned_step", poisoned_step);

/// Computes a step as the product does, unless worker 1 gets a poisonous token of a prompt.
fn poisoned_step(ctx: &mut WorkerContext, state: Object, bytes: Arc<[u8]>) -> Result<Object, BoxError> {
    let plan = Plan::from_bytes(&bytes)?;
    let mut given = plan.rows.iter().filter_map(|row| match &row.tokens {
        Tokens::Given(tokens) => Some(tokens),
        _ => None,
    });
    match given.find_map(|tokens| tokens.iter().find(|token| [ABORTS, PANICS, SCRIBBLES].contains(token))) {
        Some(&ABORTS) if ctx.worker().index() == 1 => std::process::abort(),
        Some(&SCRIBBLES) if ctx.worker().index() == 1 => scribble(),
        Some(&PANICS) if ctx.worker().index() == 1 => panic!("the token is poisonous"),
        _ => function::find(STEP)?.call(ctx, &Args::of_objects(&[state, Object::Value(Value::Bytes(bytes))])),
    }
}

/// Writes to random addresses of all memory that other processes may map, as a stray pointer might, and then to an address that
/// is not mapped. Memory of this process alone ends with it.
fn scribble() -> ! {
    let mut random = Random::new(1);
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    for line in maps.lines().filter(|line| line.contains(" rw-s ") && line.contains("memfd:disco")) {
        let (start, end) = line.split(' ').next().unwrap().split_once('-').unwrap();
        let [start, end] = [start, end].map(|address| usize::from_str_radix(address, 16).unwrap());
        // The first part of memory is in use.
        let bytes = (end - start).min(4 << 20);
        for _ in 0..2000 {
            let address = start + random.below(bytes / 8) * 8;
            // SAFETY: none: this damages the process, which ends.
            unsafe { std::ptr::with_exposed_provenance_mut::<u64>(address).write_volatile(random.next()) };
        }
    }
    // SAFETY: as above.
    unsafe { std::ptr::with_exposed_provenance_mut::<u64>(8).write_volatile(1) };
    unreachable!("the process has ended")
}

/// A server in this process, whose workers are processes.
pub(crate) struct Server {
    pub(crate) client: Client,
    drain: Drain,
    threads: Vec<JoinHandle<()>>,
}

impl Server {
    fn start() -> Self {
        Self::start_with("tests.poisoned_step", |_| ())
    }

    /// A server whose steps are computed by this worker function, after `change` of its options.
    pub(crate) fn start_with(step: &'static str, change: impl FnOnce(&mut Options)) -> Self {
        let path = model("llama-3");
        let weights = Weights::open(&path).unwrap();
        let (config, text) = (Config::open(&weights).unwrap(), Arc::new(Text::open(&weights).unwrap()));
        let load = Load::new(path, Precision::F32);
        let mut options = Options {
            name: "tiny".into(),
            placement: Placement {
                builder: Builder::processes(2).apart(true),
                backend: "local".into(),
                devices: Vec::new(),
                step,
                step_deadline: Duration::from_secs(60),
                read: Read::Texts(Serve::new(load, BLOCKS as usize, SEQUENCES as usize)),
            },
            limits: schedule::Limits {
                blocks: BLOCKS,
                max_sequences: SEQUENCES,
                max_batched_tokens: 32,
                context: CONTEXT,
                kept_states: None,
                first_context: None,
                drafts: 8,
            },
            slow_reader: Duration::from_secs(60),
        };
        change(&mut options);
        let (requests, inbox) = engine::channel(64);
        let (health, drain) = (Arc::new(Health::new()), Drain::new());
        let app = App {
            requests,
            model: Model {
                name: "tiny".into(),
                text,
                ends: config.eos.to_vec(),
                vocabulary: config.vocabulary,
                sampling: config.sampling,
                fingerprint: Arc::default(),
                is_on_the_host: true,
            },
            encoder: None,
            limits: Limits::new(CONTEXT, BLOCKS as usize * disco_models::BLOCK),
            token: None,
            hosts: None,
            origins: Vec::new(),
            health: health.clone(),
            metrics: Some(recorder()),
            spans: None,
        };
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        listener.set_nonblocking(true).unwrap();
        let client = Client { address: listener.local_addr().unwrap() };
        let (ended, until) = (drain.clone(), drain.clone());
        let engine = thread::spawn(move || engine::run(options, inbox, health, ended.ended()).unwrap());
        let http = thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
            runtime.block_on(async {
                serve(tokio::net::TcpListener::from_std(listener).unwrap(), app, until).await;
            });
        });
        client.wait_until("the server is ready", || client.get("/ready").status == 200);
        Self { client, drain, threads: vec![http, engine] }
    }

    /// Asks for a text, again while workers are replaced.
    pub(crate) fn ask(&self, prompt: &Json, more: &Json) -> super::client::Answer {
        let mut body = completion("", 40, more.clone());
        body["prompt"] = prompt.clone();
        let mut answers = std::iter::repeat_with(|| self.client.post("/v1/completions", &body));
        answers.find(|answer| answer.status != 503).unwrap()
    }

    pub(crate) fn end(self) {
        self.drain.end();
        for thread in self.threads {
            thread.join().unwrap();
        }
    }
}

/// A request whose prompt has `poison` ends with an error that has `words`; other requests of the same steps get their usual texts.
fn ends_alone(poison: u32, words: &[&str]) {
    let server = Server::start();
    let good = |index: usize| {
        let more = if index.is_multiple_of(2) { json!({}) } else { json!({"temperature": 0.9, "seed": index}) };
        (json!(["The river was", "a", "Once upon a time there was"][index % 3]), more)
    };
    let ask = |index: usize| {
        let (prompt, mut more) = good(index);
        more["ignore_eos"] = json!(true);
        server.ask(&prompt, &more).text()
    };
    let expected: Vec<_> = (0..6).map(ask).collect();
    thread::scope(|scope| {
        let others: Vec<_> = (0..3)
            .map(|client| {
                let (ask, expected) = (&ask, &expected);
                scope.spawn(move || {
                    for index in (client..).step_by(3).take(8) {
                        assert_eq!(ask(index % 6), expected[index % 6]);
                    }
                })
            })
            .collect();
        for _ in 0..2 {
            let answer = server.ask(&json!([5, 6, poison, 7]), &json!({}));
            assert_eq!(answer.status, 500, "{answer:?}");
            let error = &answer.json()["error"];
            let message = error["message"].as_str().unwrap();
            assert!(words.iter().all(|words| message.contains(words)), "{message}");
            assert_eq!(error["code"], "internal_error");
        }
        others.into_iter().for_each(|client| client.join().unwrap());
    });
    server.client.wait_until("all blocks are free", || {
        let load = &server.client.get("/health").json()["load"];
        load["free_blocks"] == load["blocks"] && load["running"] == 0
    });
    server.end();
}

#[test]
fn a_prompt_that_kills_its_workers_ends_alone() {
    disco::init_test!();
    ends_alone(ABORTS, &["while no other request was running", "worker 1", "SIGABRT"]);
}

#[test]
fn a_prompt_that_makes_a_worker_write_all_over_its_memory_ends_alone() {
    disco::init_test!();
    ends_alone(SCRIBBLES, &["while no other request was running", "worker 1", "SIGSEGV"]);
}

#[test]
fn a_prompt_that_makes_a_worker_panic_ends_alone() {
    disco::init_test!();
    ends_alone(PANICS, &["while no other request was running", "worker 1", "the token is poisonous"]);
}
