//! The program `disco-serve`.

#![allow(clippy::print_stderr, reason = "messages for the user")]

mod args;
mod collector;
mod log;
mod memory;
mod model;
mod prepared;
mod signals;

use std::collections::BTreeMap;
use std::env;
use std::fs;
use std::net::SocketAddr;
use std::os::unix::process::CommandExt as _;
use std::process::{Command, ExitCode};
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use anyhow::{Context as _, Result, bail, ensure};
use args::Args;
use clap::Parser as _;
use collector::Collector;
use disco::Settings;
use disco_models::encoding::Encode;
use disco_models::serving::Serve;
use disco_models::{BLOCK, SamplingDefaults};
use disco_serve::engine::{self, Options, Placement, Read, schedule};
use disco_serve::health::{Health, Snapshot};
use disco_serve::http::{App, BearerToken, Drain, Encoder, Hosts, Limits, Model, serve};
use disco_serve::metrics;
use prepared::{Prepared, PreparedEncoder};
use signal_hook::iterator::Signals;
use signals::Ends;

/// The variable with the token of clients.
const TOKEN: &str = "DISCO_SERVE_TOKEN";

fn main() -> ExitCode {
    // Worker processes get the arguments and the environment of the controller, so they pass here and stay in `init`.
    let args = Args::parse();
    if let Err(error) = execute_again_with_limits(&args) {
        eprintln!("disco-serve: the program can't be executed again: {error}");
        return ExitCode::FAILURE;
    }
    let signals = Ends::handle();
    disco::init();
    args.log_format.start();
    match signals.and_then(|signals| run(&args, signals)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            args.log_format.fail(&format!("{error:#}"));
            ExitCode::FAILURE
        }
    }
}

/// Executes this program again with the numbers of threads in its environment, which candle reads, unless they are there.
fn execute_again_with_limits(args: &Args) -> std::io::Result<()> {
    const RAYON: &str = "RAYON_NUM_THREADS";
    const CANDLE: &str = "CANDLE_NUM_THREADS";
    // A node that joins has the number of threads from the controller.
    if [RAYON, CANDLE, "DISCO_CONNECT"].iter().any(|name| env::var_os(name).is_some()) {
        return Ok(());
    }
    // candle has one pool of threads in a process, which serves one caller at a time.
    let mut again = Command::new(env::current_exe()?);
    again.args(env::args_os().skip(1)).env(RAYON, args.threads().to_string());
    Err(again.env(CANDLE, if args.shares_threads() { 1 } else { args.threads() }.to_string()).exec())
}

fn run(args: &Args, signals: Signals) -> Result<()> {
    let ends = Ends::answer(signals, args.log_format)?;
    let token = token(args)?;
    let addresses = args.addresses().with_context(|| format!("--host {}", args.host))?;
    ensure!(
        token.is_some() || addresses.iter().all(|address| address.ip().is_loopback()),
        "{} can be reached from other machines, so clients need a token: set {TOKEN} or --token-file",
        args.host
    );
    let listener = std::net::TcpListener::bind(&addresses[..])
        .with_context(|| format!("{}, port {}, can't be listened at", args.host, args.port))?;
    listener.set_nonblocking(true)?;
    let address = listener.local_addr()?;
    let settings = args.settings()?;
    let recorder = metrics::install().context("metrics can't be recorded")?;
    let collector = Collector::start(args.otlp.as_deref())?;
    let prepared = Kind::new(args, &settings)?;

    let waiting = args.max_num_seqs as usize + args.max_waiting_requests as usize;
    let (requests, inbox) = engine::channel(waiting);
    let (encoders, batches) = engine::encoders(waiting);
    let (health, drain) = (Arc::new(Health::new()), Drain::new());
    ends.drain(drain.clone(), health.clone(), Duration::from_secs(args.drain));
    let (of_engine, end) = (health.clone(), drain.clone());
    let started: Box<dyn FnOnce() -> Result<(), disco::Error> + Send> = match &prepared {
        Kind::Texts(prepared) => {
            let options = options(args, &settings, prepared);
            Box::new(move || {
                let ending = Ending(end);
                engine::run(options, inbox, of_engine, ending.0.ended())
            })
        }
        Kind::Encoder(prepared) => {
            let read = Read::Encoder(Encode::new(prepared.load.clone(), prepared.encoding.clone()));
            let placement = placement(args, &settings, engine::ENCODE, read);
            Box::new(move || {
                let ending = Ending(end);
                engine::run_encoder(placement, batches, of_engine, ending.0.ended())
            })
        }
    };
    // Without an engine, the program ends, so that what supervises it can start it again.
    let engine = thread::Builder::new().name("engine".into()).spawn(started)?;
    let Settings { workers, session, backend, .. } = &settings;
    let what = match &prepared {
        Kind::Texts(Prepared { context, memory, .. }) => format!(
            "context {context} tokens, cache {} blocks of {BLOCK} tokens, {} MiB of each worker, at most {} texts at a time",
            memory.blocks,
            memory.bytes() >> 20,
            args.max_num_seqs,
        ),
        Kind::Encoder(PreparedEncoder { encoding, .. }) => {
            let what = if encoding.scores_pairs { "scores of pairs of texts" } else { "vectors of texts" };
            format!("{what} of at most {} tokens", encoding.longest)
        }
    };
    let (model, encoder, context, room) = match prepared {
        Kind::Texts(Prepared { model, context, memory, .. }) => (model, None, context, memory.tokens()),
        Kind::Encoder(PreparedEncoder { model, encoding, .. }) => {
            let longest = encoding.longest;
            (model, Some(Encoder { encoders, encoding }), longest, longest)
        }
    };
    args.log_format.tell(&format!("{} on {workers} workers ({session}, {backend}): {what}", model.name));
    if model.sampling != SamplingDefaults::default() {
        args.log_format.tell(&format!(
            "requests that do not say how tokens are chosen get {}, as the model recommends; `--sampling-defaults openai` turns it off",
            model.sampling
        ));
    }
    let limits = Limits {
        step_time: Duration::from_secs(args.step_deadline),
        request_time: Duration::from_secs(args.request_timeout),
        connections: args.max_connections as usize,
        waiting_requests: args.max_waiting_requests as usize,
        // A request for vectors has up to 2048 texts.
        waiting_tokens: context.saturating_mul(if encoder.is_some() { 2048 } else { 64 }),
        ..Limits::new(context, room)
    };
    let hosts = token.is_none().then(|| Hosts::new(&args.allowed_hosts));
    let origins = args.allowed_origins.clone();
    let app = App {
        requests,
        model,
        encoder,
        limits,
        token,
        hosts,
        origins,
        health: health.clone(),
        metrics: Some(recorder),
        spans: collector.spans(),
    };
    let _noting = disco::programs::note(move || notes(address, &health.snapshot()));
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    args.log_format.tell(&format!("http://{address}/v1"));
    runtime.block_on(async {
        let listener = tokio::net::TcpListener::from_std(listener)?;
        serve(listener, app, drain).await;
        Ok::<_, anyhow::Error>(())
    })?;
    // Only calls of the tokenizer are left.
    runtime.shutdown_background();
    collector.end();
    match engine.join() {
        Ok(served) => served.context("the engine has failed"),
        Err(_) => bail!("the engine has panicked"),
    }
}

/// Ends the server when it is dropped, also by a panic.
struct Ending(Drain);

impl Drop for Ending {
    fn drop(&mut self) {
        self.0.end();
    }
}

/// A model that can be served.
enum Kind {
    Texts(Prepared),
    Encoder(PreparedEncoder),
}

impl Kind {
    fn new(args: &Args, settings: &Settings) -> Result<Self> {
        Ok(match PreparedEncoder::new(args)? {
            Some(prepared) => Self::Encoder(prepared),
            None => Self::Texts(Prepared::new(args, settings)?),
        })
    }
}

fn options(args: &Args, settings: &Settings, prepared: &Prepared) -> Options {
    let Prepared { model: Model { name, .. }, load, memory, .. } = prepared;
    let read = Read::Texts(Serve::new(load.clone(), memory.blocks, args.max_num_seqs as usize));
    Options {
        name: name.clone(),
        placement: placement(args, settings, engine::STEP, read),
        limits: schedule::Limits {
            blocks: memory.blocks as u32,
            max_sequences: args.max_num_seqs,
            max_batched_tokens: args.max_num_batched_tokens as usize,
            context: prepared.context,
            kept_states: memory.kept_states,
            first_context: prepared.first_context,
            drafts: prepared.drafts,
        },
        slow_reader: Duration::from_secs(60),
    }
}

fn placement(args: &Args, settings: &Settings, step: &'static str, read: Read) -> Placement {
    Placement {
        builder: args.builder(settings),
        backend: settings.backend.clone(),
        devices: settings.devices.clone(),
        step,
        step_deadline: Duration::from_secs(args.step_deadline),
        read,
    }
}

/// The token of clients, if there is one.
fn token(args: &Args) -> Result<Option<BearerToken>> {
    let text = match &args.token_file {
        Some(file) => Some(fs::read_to_string(file).with_context(|| format!("{} can't be read", file.display()))?),
        None => args.api_key.clone().or_else(|| env::var(TOKEN).ok()),
    };
    Ok(text.as_deref().map(BearerToken::new).transpose()?)
}

/// What `disco status` shows of the server.
fn notes(address: SocketAddr, now: &Snapshot) -> BTreeMap<String, String> {
    let Snapshot { state, load, last_step, step } = now;
    let seconds = |time: &Duration| format!("{:.1} s", time.as_secs_f64());
    let step = match (step, last_step) {
        (Some(time), _) => format!("under way for {}", seconds(time)),
        (None, Some(time)) => format!("the last one ended {} ago", seconds(time)),
        (None, None) => "none yet".to_owned(),
    };
    let used = load.blocks - load.free_blocks;
    let notes = [
        ("address", format!("http://{address}/v1")),
        ("blocks", format!("{used} of {} used", load.blocks)),
        ("engine", state.to_string()),
        ("requests", format!("{} running, {} waiting", load.running, load.waiting)),
        ("step", step),
    ];
    notes.map(|(name, note)| (name.to_owned(), note)).into()
}
