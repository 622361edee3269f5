//! Compares attention to blocks on the first CUDA device with that of the host, and measures it beside a copy of as many
//! bytes. Without feature `cuda`, the host takes the device's part.
//!
//! ```sh
//! cargo run --release -p disco-candle --features cuda --example attention
//! ```

#![allow(clippy::disallowed_methods, reason = "the comparison waits for the device")]

use std::ops::Range;
use std::time::Instant;

use anyhow::ensure;
use candle_core::{DType, Device, Tensor};
use clap::Parser;
use disco_candle::paged::{BLOCK, Plan, Run, Scope, attention};

#[derive(Parser)]
struct Options {
    /// Small sizes, and few repetitions.
    #[arg(long)]
    quick: bool,
}

/// A batch, and the memory of a layer.
struct Batch {
    runs: Vec<Run>,
    groups: Vec<Range<usize>>,
    /// `[1, heads, tokens, width]`
    query: Tensor,
    /// Keys and values, `[blocks, kv heads, 16, width]`.
    memory: [Tensor; 2],
}

impl Batch {
    /// Runs of these first positions and counts. The blocks of a sequence do not follow each other.
    fn new(
        runs: &[(usize, usize)],
        groups: &[usize],
        width: usize,
        dtype: DType,
        device: &Device,
    ) -> anyhow::Result<Self> {
        let needed = |(first, count): (usize, usize)| (first + count).div_ceil(BLOCK);
        let blocks: usize = runs.iter().copied().map(needed).sum();
        let mut heads = 0;
        let groups = groups.iter().map(|count| {
            heads += count;
            heads - count..heads
        });
        let groups: Vec<_> = groups.collect();
        let mut free = (0..2).flat_map(|half| (half..blocks as u32).step_by(2));
        let run = |&(first, count): &(usize, usize)| {
            Run::new(first, count, free.by_ref().take(needed((first, count))).collect())
        };
        let runs: Vec<_> = runs.iter().map(run).collect();
        let tokens: usize = runs.iter().map(|run| run.count).sum();
        let random = |shape: [usize; 4]| Tensor::randn(0f32, 1.0, &shape, device)?.to_dtype(dtype);
        let memory = || random([blocks, groups.len(), BLOCK, width]);
        let memory = [memory()?, memory()?];
        let query = (random([1, heads, tokens, width])? * (width as f64).powf(-0.5))?;
        Ok(Self { runs, groups, query, memory })
    }

    fn on(&self, device: &Device) -> anyhow::Result<Self> {
        let [keys, values] = &self.memory;
        let memory = [keys.to_device(device)?, values.to_device(device)?];
        Ok(Self { runs: self.runs.clone(), groups: self.groups.clone(), query: self.query.to_device(device)?, memory })
    }

    fn plan(&self) -> candle_core::Result<Plan<'_>> {
        let (plan, device) = (Plan::new(&self.runs, &self.groups)?, self.query.device());
        if device.is_cpu() {
            return Ok(plan);
        }
        let words = plan.words();
        let count = words.len();
        Ok(plan.on_device(Tensor::from_vec(words, count, device)?))
    }

    fn attend(&self, plan: &Plan<'_>, window: Option<usize>, cap: Option<f64>) -> candle_core::Result<Tensor> {
        let mut scope = Scope::new(plan);
        (scope.window, scope.cap) = (window, cap);
        attention(&self.query, &self.memory[0], &self.memory[1], scope)
    }
}

fn main() -> anyhow::Result<()> {
    let is_quick = Options::parse().quick;
    let device = Device::cuda_if_available(0)?;
    println!("attention to blocks on {:?}", device.location());
    compare(&device, if is_quick { &[32, 80] } else { &[32, 64, 80, 128, 256] })?;
    let (contexts, length) = if is_quick { (2, 64) } else { (64, 2048) };
    measure(&device, &format!("{contexts} decodes of {length} tokens"), &vec![(length - 1, 1); contexts], is_quick)?;
    measure(&device, "1 decode of 32 times as many", &[(32 * length - 1, 1)], is_quick)?;
    measure(&device, &format!("a prompt of {length} tokens"), &[(0, length)], is_quick)
}

/// Fails unless the device computes what the host computes.
fn compare(device: &Device, widths: &[usize]) -> anyhow::Result<()> {
    // A prompt, a decode of a long sequence, the next part of a prompt, and a decode in the first block.
    let runs = [(0, 75), (700, 1), (133, 40), (3, 1)];
    for (dtype, allowed) in [(DType::F32, 2e-5), (DType::F16, 2e-3), (DType::BF16, 2e-2)] {
        let mut farthest = 0f32;
        for &width in widths {
            for groups in [&[1, 1][..], &[4, 4], &[3, 5], &[8]] {
                let host = Batch::new(&runs, groups, width, dtype, &Device::Cpu)?;
                let there = host.on(device)?;
                for (window, cap) in [(None, None), (Some(100), None), (Some(1), Some(1.0)), (None, Some(2.0))] {
                    let found = there.attend(&there.plan()?, window, cap)?.to_device(&Device::Cpu)?;
                    let expected = host.attend(&host.plan()?, window, cap)?;
                    let [found, expected] = [found.to_dtype(DType::F32)?, expected.to_dtype(DType::F32)?];
                    let off = ((found - &expected)?.abs()? / (expected.abs()? + 1.0)?)?;
                    let off = off.flatten_all()?.to_vec1::<f32>()?.into_iter();
                    // NaN is farther than all numbers.
                    let off = off.fold(0f32, |off, x| if x > off || x.is_nan() { x } else { off });
                    ensure!(
                        off <= allowed,
                        "{dtype:?}, width {width}, groups {groups:?}, window {window:?}, cap {cap:?}: {off} from the host"
                    );
                    farthest = farthest.max(off);
                }
            }
        }
        println!("{dtype:?}: relative difference from the host at most {farthest:.1e}");
    }
    Ok(())
}

/// Times of attention of 32 query heads to 8 kv heads of 128 elements in bf16, beside a copy of the keys and values.
fn measure(device: &Device, what: &str, runs: &[(usize, usize)], is_quick: bool) -> anyhow::Result<()> {
    let batch = Batch::new(runs, &[4; 8], 128, DType::BF16, device)?;
    let plan = batch.plan()?;
    let repeat = if is_quick { 2 } else { 50 };
    let time = |work: &dyn Fn() -> candle_core::Result<()>| -> anyhow::Result<f64> {
        work()?;
        device.synchronize()?;
        let start = Instant::now();
        for _ in 0..repeat {
            work()?;
        }
        device.synchronize()?;
        Ok(start.elapsed().as_secs_f64() / f64::from(repeat))
    };
    let attention = time(&|| batch.attend(&plan, None, None).map(drop))?;
    let copy = time(&|| batch.memory.iter().try_for_each(|memory| memory.copy().map(drop)))?;
    let bytes: usize = batch.memory.iter().map(|memory| memory.elem_count() * 2).sum();
    println!(
        "{what}: {:.1} us for {:.1} MiB of keys and values; a copy of them {:.1} us",
        attention * 1e6,
        bytes as f64 / f64::from(1 << 20),
        copy * 1e6
    );
    Ok(())
}
