//! Measures how fast one rank loads its share from a warm page cache, against a copy of as many bytes in memory.
//!
//! ```sh
//! cargo run --release -p disco-candle --example load_speed -- --ranks 4 --mib 512
//! ```

use std::collections::HashMap;
use std::hint::black_box;
use std::sync::Arc;
use std::time::{Duration, Instant};

use candle_core::{DType, Device, Tensor};
use clap::Parser;
use disco_candle::weights::{Plan, Shards, Split, Weights};

#[derive(Parser)]
struct Options {
    /// Number of ranks; the first one loads.
    #[arg(long, default_value_t = 4)]
    ranks: usize,
    /// Size of the model.
    #[arg(long, default_value_t = 512)]
    mib: usize,
    /// Columns of each tensor, in elements of two bytes.
    #[arg(long, default_value_t = 4096)]
    columns: usize,
    /// Repetitions; the fastest counts.
    #[arg(long, default_value_t = 5)]
    repeat: usize,
}

fn main() -> anyhow::Result<()> {
    let options = Options::parse();
    let folder = tempfile::tempdir()?;
    let path = folder.path().join("model.safetensors");
    let rows = options.mib * (1 << 20) / 4 / (options.columns * 2);
    let tensor = Tensor::rand(0f32, 1., (rows, options.columns), &Device::Cpu)?.to_dtype(DType::BF16)?;
    let names = ["0", "1", "2", "3"];
    candle_core::safetensors::save(&HashMap::from(names.map(|name| (name, tensor.clone()))), &path)?;
    drop(tensor);

    for (label, plan) in [
        ("rows", Plan::new().with("*", Split::even(0, 1))),
        ("columns", Plan::new().with("*", Split::even(1, 1))),
        ("whole", Plan::new()),
    ] {
        let weights = Arc::new(Weights::open(&path)?);
        let shards = Shards::new(weights, plan, 0, options.ranks, DType::BF16, Device::Cpu);
        let bytes = shards.expected_bytes();
        let load = fastest(options.repeat, || names.iter().try_for_each(|name| shards.tensor(name).map(drop)))?;
        // As many bytes in as many pieces of new memory.
        let source = vec![1u8; bytes as usize / names.len()];
        let copy = fastest(options.repeat, || {
            names.iter().for_each(|_| drop(black_box(black_box(&source).to_vec())));
            anyhow::Ok(())
        })?;
        let speed = |time: Duration| bytes as f64 / time.as_secs_f64() / 1e9;
        println!(
            "{label:8} {:>6} MiB: {:.2} GB/s, a copy in memory {:.2} GB/s, ratio {:.2}",
            bytes >> 20,
            speed(load),
            speed(copy),
            speed(load) / speed(copy)
        );
    }
    Ok(())
}

fn fastest<E>(repeat: usize, mut run: impl FnMut() -> Result<(), E>) -> Result<Duration, E> {
    let mut best = Duration::MAX;
    for _ in 0..repeat.max(1) {
        let start = Instant::now();
        run()?;
        best = best.min(start.elapsed());
    }
    Ok(best)
}
