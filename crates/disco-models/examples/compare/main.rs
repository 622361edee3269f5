//! Compares the speed of one rank of `disco_models` with candle-transformers' own model, in turn, on the same
//! weights: `cargo run --release -p disco-models --example compare -- MODEL.gguf`. `--file` keeps the quantised weights;
//! otherwise both compute in 32-bit floats.

mod dequantise;

use std::fs::File;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Instant;

use anyhow::{Result, ensure};
use candle_core::quantized::gguf_file::Content;
use candle_core::{DType, Device, Tensor};
use candle_transformers::models::quantized_llama::ModelWeights;
use clap::Parser;
use disco::{DeviceKind, device_api};
use disco_candle::Comm;
use disco_candle::weights::{Shards, Weights};
use disco_models::{Config, Precision, Sampler, Transformer, plan};

use crate::dequantise::dequantise;

#[derive(Parser)]
struct Args {
    /// GGUF file of a llama model
    model: PathBuf,
    /// Keep the quantised weights
    #[arg(long)]
    file: bool,
    /// Tokens of each round
    #[arg(long, default_value_t = 32)]
    tokens: usize,
    /// Rounds of each model
    #[arg(long, default_value_t = 5)]
    rounds: usize,
}

const PROMPT: [u32; 5] = [504, 3575, 282, 4649, 314];

fn main() -> Result<()> {
    let args = Args::parse();
    let folder = tempfile::tempdir()?;
    let (path, precision) = if args.file {
        (args.model.clone(), Precision::File)
    } else {
        (folder.path().join("f32.gguf"), Precision::F32)
    };
    if !args.file {
        dequantise(&args.model, &path)?;
    }
    let mut file = File::open(&path)?;
    let mut candle = ModelWeights::from_gguf(Content::read(&mut file)?, &mut file, &Device::Cpu)?;
    let weights = Arc::new(Weights::open(&path)?);
    let config = Config::open(&weights)?;
    let shards = Shards::new(weights.clone(), plan(&config, &weights, 1)?, 0, 1, DType::F32, Device::Cpu);
    let ours = Transformer::load(config, &shards, precision, Comm::alone())?;

    for round in 0..args.rounds {
        let (expected, theirs) = timed(args.tokens, |count| candle_tokens(&mut candle, count))?;
        let (found, own) = timed(args.tokens, |count| own_tokens(&ours, count))?;
        ensure!(args.file || found == expected, "the tokens differ: {found:?}, not {expected:?}");
        println!("round {round}: candle {theirs:.1}, ours {own:.1} tokens/s, ratio {:.2}", own / theirs);
    }
    Ok(())
}

/// The tokens and the tokens/s.
fn timed(count: usize, run: impl FnOnce(usize) -> Result<Vec<u32>>) -> Result<(Vec<u32>, f64)> {
    let start = Instant::now();
    let tokens = run(count)?;
    Ok((tokens, count as f64 / start.elapsed().as_secs_f64()))
}

#[expect(clippy::disallowed_methods, reason = "as users of candle do")]
fn candle_tokens(model: &mut ModelWeights, count: usize) -> Result<Vec<u32>> {
    model.clear_kv_cache();
    let (mut input, mut position, mut tokens) = (PROMPT.to_vec(), 0, Vec::new());
    for _ in 0..count {
        let logits = model.forward(&Tensor::new(&*input, &Device::Cpu)?.unsqueeze(0)?, position)?;
        position += input.len();
        let token = logits.flatten_all()?.argmax(0)?.to_scalar::<u32>()?;
        tokens.push(token);
        input = vec![token];
    }
    Ok(tokens)
}

fn own_tokens(model: &Transformer, count: usize) -> Result<Vec<u32>> {
    let mut queue = device_api::find(DeviceKind::Cpu)?.bind(disco::Device::CPU)?;
    let mut generation = model.generate(&[PROMPT.to_vec()], Sampler::GREEDY)?;
    let mut tokens = Vec::new();
    while tokens.len() < count {
        tokens.extend(generation.next(model, &mut *queue)?.into_iter().flatten());
    }
    Ok(tokens)
}
