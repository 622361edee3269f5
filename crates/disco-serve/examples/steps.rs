//! The floor of the server: steps of a full batch without scheduler and HTTP.
//!
//! ```sh
//! cargo run --release --package disco-serve --example steps -- MODEL [--workers N] [--sequences N] [--prompt N] [--tokens N]
//! ```

use std::collections::VecDeque;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use clap::Parser;
use disco::{Builder, DRef, Json, Value, WorkerId, block_on};
use disco_models::serving::{Params, Plan, Reply, Row, Serve, Start, Tokens};
use disco_models::worker::Load;
use disco_models::{BLOCK, Precision, Sampler};

#[derive(Parser)]
struct Args {
    /// GGUF or safetensors file, or folder
    model: PathBuf,
    #[arg(long, default_value_t = 1)]
    workers: usize,
    /// Threads of each worker
    #[arg(long, default_value_t = 1)]
    threads: usize,
    /// Sequences at the same time
    #[arg(long, default_value_t = 8)]
    sequences: usize,
    /// Tokens of each prompt
    #[arg(long, default_value_t = 64)]
    prompt: usize,
    /// Tokens to generate for each sequence
    #[arg(long, default_value_t = 64)]
    tokens: usize,
    /// 32-bit weights, instead of the blocks of the file
    #[arg(long)]
    f32: bool,
}

fn main() -> Result<()> {
    disco::init();
    let args = Args::parse();
    let session = Builder::processes(args.workers).apart(true).start()?;
    block_on(run(&session, &args))
}

async fn run(session: &disco::LaneSession, args: &Args) -> Result<()> {
    session.init_ccl("local", &[]).await?;
    let mut load = Load::new(args.model.clone(), if args.f32 { Precision::F32 } else { Precision::File });
    load.threads = args.threads;
    let blocks = (args.prompt + args.tokens).div_ceil(BLOCK) * args.sequences;
    let serve = Serve::new(load, blocks, args.sequences);
    let state = session.call("disco.models.serve", (Json(serve), None::<&DRef>)).await?;
    session.sync_all().await?;
    let step = session.function("disco.models.step").await?;
    let mut free = 0..blocks as u32;
    let mut lens = vec![0usize; args.sequences];
    let start = Instant::now();
    let mut prompted = Duration::ZERO;
    let mut calls = VecDeque::new();
    for number in 0..args.tokens {
        let mut plan = Plan::new(number as u64);
        for (slot, len) in lens.iter_mut().enumerate() {
            let tokens = match number {
                0 => Tokens::Given((0..args.prompt).map(|at| ((at * 7 + slot * 13) % 1000 + 100) as u32).collect()),
                _ => Tokens::Last,
            };
            let count = if number == 0 { args.prompt } else { 1 };
            let mut row = Row::new(slot as u32, *len as u32, tokens);
            let had = len.div_ceil(BLOCK);
            *len += count;
            row.blocks = free.by_ref().take(len.div_ceil(BLOCK) - had).collect();
            row.samples = true;
            if number == 0 {
                row.starts = Some(Box::new(Start::new(Params::new(Sampler::GREEDY), args.prompt)));
            }
            plan.rows.push(row);
        }
        let bytes = plan.to_bytes().map_err(anyhow::Error::msg)?;
        let call = session.call(&step, (&state, bytes)).await?;
        calls.push_back(Box::pin(async move { session.value(&call, WorkerId::new(0)).await }));
        if let Some(last) = calls.back_mut() {
            // Asks for the reply before the next step is sent.
            _ = futures_lite::future::poll_once(last.as_mut()).await;
        }
        if calls.len() == 2 || number == 0 {
            finish(calls.pop_front().context("no call")?.await?)?;
            if number == 0 {
                prompted = start.elapsed();
            }
        }
    }
    for call in calls {
        finish(call.await?)?;
    }
    let generated = (start.elapsed() - prompted).as_secs_f64();
    let (prompts, tokens) = (args.sequences * args.prompt, args.sequences * (args.tokens - 1));
    println!(
        "{} sequences: prompts {:.0} tokens/s, texts {:.1} tokens/s, a step {:.2} ms; with prompts {:.1} tokens/s",
        args.sequences,
        prompts as f64 / prompted.as_secs_f64(),
        tokens as f64 / generated,
        generated / (args.tokens - 1) as f64 * 1e3,
        (args.sequences * args.tokens) as f64 / (generated + prompted.as_secs_f64())
    );
    session.shutdown().await?;
    Ok(())
}

fn finish(reply: Value) -> Result<()> {
    let Value::Bytes(bytes) = reply else { bail!("the reply is {}", reply.kind()) };
    Reply::from_bytes(&bytes).map_err(anyhow::Error::msg)?;
    Ok(())
}
