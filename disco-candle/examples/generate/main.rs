//! Generates text with a language model that is split over the workers of a session:
//! `cargo run --release -p disco-candle --example generate -- --workers 3 "What is gravity?"`; `-- --help` lists the
//! options.

mod args;
mod generate;
mod model;
mod output;
mod report;
mod text;
mod threads;
mod worker;

use std::process::{self, ExitCode};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::{Context, Result, ensure};
use clap::Parser;
use disco::error::ErrorKind;
use disco::{Builder, LaneSession, Session as _, SessionKind, block_on};
use disco_candle::llama::{Config, plan};
use disco_candle::weights::Weights;
use indicatif::{ProgressBar, ProgressStyle};

use crate::args::Args;
use crate::generate::Outcome;
use crate::output::Output;
use crate::text::Text;
use crate::worker::{Batch, Load, PROGRESS};

fn main() -> ExitCode {
    // Worker processes get the arguments and the environment of the controller, so they pass here and stay in `init`.
    let args = Args::parse();
    if let Err(error) = threads::execute_again_with_limits(&args) {
        eprintln!("generate: the program can't be executed again: {error}");
        return ExitCode::FAILURE;
    }
    disco::init();
    match run(&args) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("generate: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(args: &Args) -> Result<()> {
    let path = model::find(args.model.as_deref(), &model::SMOLLM2)?;
    let weights = Weights::open(&path)?;
    let config = Config::open(&weights)?;
    if args.show_plan {
        print!("{}", plan(&config, &weights, args.workers.into())?);
        return Ok(());
    }
    let text = Text::open(&weights)?;
    let prompts = args.all_prompts()?;
    let tokens = prompts.iter().map(|prompt| text.tokens(prompt, args.system.as_deref(), args.raw));
    let tokens = tokens.collect::<Result<Vec<_>>>()?;
    let longest = tokens.iter().map(Vec::len).max().unwrap_or(0);
    ensure!(
        longest < config.context,
        "a prompt has {longest} tokens, but the context of the model has {}; shorten the prompt",
        config.context
    );
    let most = args.max_tokens.min(config.context - longest);
    let ignores_interrupts = args.kind() != SessionKind::Threads;
    let load = Load { model: path, dtype: args.dtype, threads: threads::per_worker(args), ignores_interrupts };
    let stop = stop_at_interrupt()?;
    let mut output = Output::new(prompts);
    let mut restarts = args.restarts;
    let outcome = loop {
        match attempt(args, &load, &tokens, most, &mut output, &text, &stop) {
            Err(error) if restarts > 0 && is_loss(&error) && !stop.load(Ordering::Relaxed) => {
                restarts -= 1;
                eprintln!("\ngenerate: {error:#}\ngenerate: a new session continues the text");
            }
            result => break result?,
        }
    };
    (0..tokens.len()).try_for_each(|sequence| output.end(sequence, &text))?;
    report::print(&outcome);
    Ok(())
}

/// Runs one session, which continues the texts so far.
fn attempt(
    args: &Args,
    load: &Load,
    prompts: &[Vec<u32>],
    most: usize,
    output: &mut Output,
    text: &Text,
    stop: &AtomicBool,
) -> Result<Outcome> {
    let Args { temperature, top_p, seed, .. } = *args;
    let so_far = prompts.iter().enumerate().map(|(sequence, prompt)| [prompt, output.tokens(sequence)].concat());
    let batch = Batch { prompts: so_far.collect(), temperature, top_p, seed };
    let limit = |sequence| if output.has_ended(sequence) { 0 } else { most - output.tokens(sequence).len() };
    let limits: Vec<usize> = (0..prompts.len()).map(limit).collect();
    let session = start(args)?;
    let bar = progress();
    let mut failure = None;
    let result =
        block_on(generate::generate(&session, (&args.backend, load), (&batch, &limits), stop, |sequence, token| {
            bar.finish_and_clear();
            let printed = match token {
                Some(token) => output.push(sequence, token, text),
                None => output.end(sequence, text),
            };
            if let Err(error) = printed {
                stop.store(true, Ordering::Relaxed);
                failure.get_or_insert(error);
            }
        }));
    bar.finish_and_clear();
    let closed = block_on(session.shutdown());
    let outcome = result?;
    closed?;
    failure.map_or(Ok(outcome), Err)
}

fn start(args: &Args) -> Result<LaneSession> {
    let workers = usize::from(args.workers);
    let builder = match args.kind() {
        SessionKind::Nodes => {
            let per_node = workers / args.nodes.max(1);
            ensure!(
                per_node * args.nodes == workers,
                "{workers} workers can't be shared by {} nodes equally",
                args.nodes
            );
            Builder::nodes(args.nodes, per_node)
        }
        kind => Builder::new(kind, workers),
    };
    builder.start().context("the session can't be started")
}

/// Whether a new session may succeed: a worker was lost.
fn is_loss(error: &anyhow::Error) -> bool {
    let kind = error.downcast_ref::<disco::Error>().map(disco::Error::kind);
    matches!(kind, Some(ErrorKind::Lost { .. }))
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
    bar.reset();
    bar.clone()
}
