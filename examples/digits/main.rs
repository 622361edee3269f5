//! Trains a small network on handwritten digits, data-parallel over the workers of a session:
//! `cargo run --release --example digits`; `-- --help` lists the options.

mod checkpoints;
mod data;
mod model;
mod random;
mod train;

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Parser;
use disco::{DataPlane, Session, SessionKind, Settings, block_on};
use serde::Serialize;

use crate::data::{BATCH, Dataset};
use crate::train::{Epoch, Failure, Outcome};

/// Seed of the shuffle that selects and orders the training images.
const SEED: u64 = 0;

/// Train a small network on handwritten digits, data-parallel
#[derive(Parser)]
struct Args {
    /// Number of workers; must divide 64, the rows of a batch [default: one for each node and task of a launcher, else 4]
    #[arg(long, env = "DISCO_WORKERS")]
    workers: Option<usize>,
    /// Backend of the data plane
    #[arg(long, env = "DISCO_BACKEND", default_value = "local")]
    backend: String,
    /// Kind of session: threads, processes, nodes [default: nodes with DISCO_NODES, processes for `mpi`, else threads]
    #[arg(long, env = "DISCO_SESSION")]
    session: Option<SessionKind>,
    /// Device of each worker, separated by commas [default: worker i takes device i]
    #[arg(long, env = "DISCO_DEVICES", value_delimiter = ',', value_name = "ORDINALS")]
    devices: Vec<i32>,
    /// Number of passes over all training images
    #[arg(long, default_value_t = 30, value_parser = clap::value_parser!(u16).range(1..))]
    epochs: u16,
    /// Gzipped CSV file of training data; each row has 64 pixels from 0 to 16, and the digit
    #[arg(long)]
    data: Option<PathBuf>,
    /// Folder for checkpoints: one after each epoch; a later run continues from the newest
    #[arg(long, value_name = "FOLDER")]
    checkpoint: Option<PathBuf>,
    /// Replace lost workers, and continue from the newest checkpoint; without checkpoints, from the start. Workers must
    /// be processes
    #[arg(long)]
    replace: bool,
    /// Print the result as one JSON object, without progress
    #[arg(long)]
    json: bool,
}

/// The result, as JSON.
#[derive(Serialize)]
struct Report<'a> {
    workers: usize,
    backend: &'a str,
    epochs: &'a [Epoch],
    losses: &'a [f32],
    test_accuracy: f64,
    images_per_second: f64,
}

fn main() -> ExitCode {
    disco::init();
    match run(Args::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("digits: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run(args: Args) -> Result<(), Failure> {
    let (data, held_out) = Dataset::load(args.data.as_deref())?.split(SEED);
    let session = settings(&args)?.builder().start()?;
    let outcome = block_on(async {
        session.init_ccl(&args.backend, &args.devices).await?;
        let mut report = |epoch: usize, Epoch { loss, accuracy }: &Epoch| {
            if !args.json {
                println!("epoch {:>3}  loss {loss:.4}  test accuracy {accuracy:.4}", epoch + 1);
            }
        };
        let folder = args.checkpoint.as_deref();
        let mut attempt =
            async || train::train(&session, (&data, &held_out), args.epochs.into(), folder, &mut report).await;
        let mut outcome = attempt().await;
        while let Err(error) = &outcome
            && args.replace
            && train::is_loss(error)
        {
            eprintln!("digits: {error}\ndigits: the training continues with new workers");
            outcome = match train::replace(&session, &args.backend, &args.devices).await {
                Ok(()) => attempt().await,
                Err(error) => Err(error),
            };
        }
        let outcome = outcome?;
        session.shutdown().await?;
        Ok::<_, Failure>(outcome)
    })?;

    let (workers, backend) = (session.world().size(), args.backend);
    let test_accuracy = outcome.epochs.last().map_or(0.0, |epoch| epoch.accuracy);
    let images_per_second = outcome.images_per_second;
    if args.json {
        let (epochs, losses) = (&outcome.epochs, &outcome.losses);
        let report = Report { workers, backend: &backend, epochs, losses, test_accuracy, images_per_second };
        println!("{}", serde_json::to_string(&report)?);
    } else {
        print_summary(&outcome, workers, &backend);
    }
    Ok(())
}

/// The settings of the environment, changed by the options.
fn settings(args: &Args) -> disco::Result<Settings> {
    let mut settings = Settings::from_env()?;
    let usual = if settings.workers > 1 { settings.workers } else { 4 };
    settings.workers = args.workers.unwrap_or(usual);
    if settings.session == SessionKind::Threads {
        settings.session = SessionKind::of(&args.backend);
    }
    settings.session = args.session.unwrap_or(settings.session);
    Ok(settings)
}

/// Prints a summary of the training.
fn print_summary(outcome: &Outcome, workers: usize, backend: &str) {
    let Outcome { losses, epochs, images_per_second, bytes_per_step, time, time_in_collectives } = outcome;
    let steps = losses.len();
    println!(
        "{workers} workers trained one network together, on {steps} batches of {BATCH} images; each worker had an equal part of each batch."
    );
    println!(
        "After each batch, one all-reduce of {bytes_per_step} bytes over backend `{backend}` averaged the gradients: {:.1} MB for each worker.",
        (steps * bytes_per_step) as f64 / 1e6
    );
    println!(
        "Training took {:.2} s. A worker spent {:.2} s of it in all-reduces, including waits for slower workers.",
        time.as_secs_f64(),
        time_in_collectives.as_secs_f64()
    );
    let accuracy = epochs.last().map_or(0.0, |epoch| epoch.accuracy);
    println!("test accuracy {accuracy:.3} ({images_per_second:.0} images/s)");
}
