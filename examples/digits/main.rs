//! Trains a small network on handwritten digits, data-parallel over the workers of a session:
//! `cargo run --release --example digits`; `-- --help` lists the options.

mod args;
mod checkpoints;
mod data;
mod model;
mod random;
mod train;

use std::process::ExitCode;

use disco::block_on;
use serde::Serialize;

use crate::args::Args;
use crate::data::{BATCH, Dataset};
use crate::train::{Epoch, Failure, Outcome};

/// Seed of the shuffle that selects and orders the training images.
const SEED: u64 = 0;

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
    match Args::parse().and_then(run) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("digits: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run(args: Args) -> Result<(), Failure> {
    let (data, held_out) = Dataset::load()?.split(SEED);
    let session = args.settings.builder().start()?;
    let (backend, devices) = (&args.settings.backend, &args.settings.devices);
    let outcome = block_on(async {
        session.init_ccl(backend, devices).await?;
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
            outcome = match train::replace(&session, backend, devices).await {
                Ok(()) => attempt().await,
                Err(error) => Err(error),
            };
        }
        let outcome = outcome?;
        session.shutdown().await?;
        Ok::<_, Failure>(outcome)
    })?;

    let workers = session.world().size();
    let test_accuracy = outcome.epochs.last().map_or(0.0, |epoch| epoch.accuracy);
    let images_per_second = outcome.images_per_second;
    if args.json {
        let (epochs, losses) = (&outcome.epochs, &outcome.losses);
        let report = Report { workers, backend, epochs, losses, test_accuracy, images_per_second };
        println!("{}", serde_json::to_string(&report)?);
    } else {
        print_summary(&outcome, workers, backend);
    }
    Ok(())
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
