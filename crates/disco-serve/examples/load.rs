//! A load on a server with OpenAI's interface: requests arrive at random times, whatever the server does (an open loop), or a fixed
//! number is always there.
//!
//! ```sh
//! cargo run --release --package disco-serve --example load -- --at 127.0.0.1:8000 --rate 4 --requests 200
//! cargo run --release --package disco-serve --example load -- --at 127.0.0.1:8000 --at-once 8 --requests 64
//! ```
//!
//! It prints one line: tokens per second, 50th and 99th percentiles of the time to the first token and between tokens, and the
//! share of requests that were served within `--first` and `--between`. With `--at-once`, tokens per second are those until fewer
//! requests than that are left.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use clap::Parser;
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::net::TcpStream;
use tokio::sync::Semaphore;

#[derive(Clone, Debug, Parser)]
struct Args {
    /// Address of the server
    #[arg(long)]
    at: SocketAddr,
    /// Name of the model, for servers that ask for it
    #[arg(long)]
    model: Option<String>,
    /// Requests a second, which arrive at random times (Poisson)
    #[arg(long, conflicts_with = "at_once")]
    rate: Option<f64>,
    /// Requests at the same time
    #[arg(long, default_value_t = 1)]
    at_once: usize,
    /// Number of requests
    #[arg(long, default_value_t = 32)]
    requests: usize,
    /// Words of each prompt, about
    #[arg(long, default_value_t = 48)]
    words: usize,
    /// Tokens of each text
    #[arg(long, default_value_t = 64)]
    tokens: usize,
    /// The most milliseconds to the first token of a request that counts as served well
    #[arg(long, default_value_t = 1000)]
    first: u64,
    /// The same between two of its tokens, on average
    #[arg(long, default_value_t = 100)]
    between: u64,
}

/// When a request began, and its tokens came.
struct Served {
    begin: Instant,
    tokens: Vec<Instant>,
}

impl Served {
    fn first(&self) -> Duration {
        self.tokens[0] - self.begin
    }

    fn between(&self) -> impl Iterator<Item = Duration> {
        self.tokens.windows(2).map(|two| two[1] - two[0])
    }

    /// The mean time between two tokens.
    fn mean(&self) -> Duration {
        self.between().sum::<Duration>() / self.tokens.len().saturating_sub(1).max(1) as u32
    }

    fn end(&self) -> Instant {
        self.tokens[self.tokens.len() - 1]
    }
}

#[tokio::main]
async fn main() -> Result<()> {
    let args = Arc::new(Args::parse());
    let permits = Arc::new(Semaphore::new(if args.rate.is_some() { args.requests } else { args.at_once }));
    let (start, mut arrival, mut random) = (Instant::now(), 0.0, 0x9e37_79b9_7f4a_7c15_u64);
    let mut running = Vec::new();
    for number in 0..args.requests {
        let permit = permits.clone().acquire_owned().await?;
        if let Some(rate) = args.rate {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            let uniform = ((random >> 11) as f64 + 1.0) / (1u64 << 53) as f64;
            arrival -= uniform.ln() / rate;
            let left = Duration::from_secs_f64(arrival).saturating_sub(start.elapsed());
            tokio::time::sleep(left).await;
        }
        let args = args.clone();
        running.push(tokio::spawn(async move {
            let served = request(&args, number).await;
            drop(permit);
            served
        }));
    }
    let (mut served, mut failed) = (Vec::new(), Vec::new());
    for request in running {
        match request.await? {
            Ok(times) => served.push(times),
            Err(error) => failed.push(error),
        }
    }
    let mut ends: Vec<_> = served.iter().map(Served::end).collect();
    ends.sort_unstable();
    let left = if args.rate.is_some() { 1 } else { args.at_once };
    let end = ends.len().checked_sub(left).map_or_else(Instant::now, |index| ends[index]);
    let seconds = (end - start).as_secs_f64();
    let tokens = served.iter().flat_map(|served| &served.tokens).filter(|time| **time <= end).count();
    let mut firsts: Vec<_> = served.iter().map(Served::first).collect();
    let mut between: Vec<_> = served.iter().flat_map(Served::between).collect();
    let is_good = |served: &&Served| {
        served.first().as_millis() <= args.first.into() && served.mean().as_millis() <= args.between.into()
    };
    let good = served.iter().filter(is_good).count();
    let [first_50, first_99] = [0.5, 0.99].map(|share| percentile(&mut firsts, share));
    let [between_50, between_99] = [0.5, 0.99].map(|share| percentile(&mut between, share));
    println!(
        "{} requests, {:.1} tokens/s in {seconds:.1} s; first token p50 {first_50:.0} ms, p99 {first_99:.0} ms; between p50 {between_50:.1} ms, \
         p99 {between_99:.1} ms; {good} within limits, {} failed",
        args.requests,
        tokens as f64 / seconds,
        failed.len()
    );
    failed.into_iter().next().map_or(Ok(()), Err)
}

/// Milliseconds that a share of the times do not exceed.
fn percentile(times: &mut [Duration], share: f64) -> f64 {
    times.sort_unstable();
    let index = ((times.len() as f64 * share) as usize).min(times.len().saturating_sub(1));
    times.get(index).map_or(f64::NAN, |time| time.as_secs_f64() * 1e3)
}

/// Streams one text. Prompts differ, also from those of other runs, so that none begins as another one.
async fn request(args: &Args, number: usize) -> Result<Served> {
    let prompt =
        (0..args.words).map(|word| format!("{} ", ["time", "river", "light", "stone"][(number * 7 + word * word) % 4]));
    let prompt: String = std::iter::once(format!("{} {number}. ", std::process::id())).chain(prompt).collect();
    let mut body = json!({
        "prompt": prompt, "max_tokens": args.tokens, "temperature": 0, "ignore_eos": true, "stream": true,
    });
    if let Some(model) = &args.model {
        body["model"] = json!(model);
    }
    let body = body.to_string();
    let begin = Instant::now();
    let mut stream = TcpStream::connect(args.at).await?;
    stream.set_nodelay(true)?;
    let head = format!(
        "POST /v1/completions HTTP/1.1\r\nhost: {}\r\ncontent-type: application/json\r\nconnection: close\r\ncontent-length: {}\r\n\r\n",
        args.at,
        body.len()
    );
    stream.write_all(format!("{head}{body}").as_bytes()).await?;
    let mut lines = BufReader::new(stream).lines();
    let status = lines.next_line().await?.context("no answer")?;
    ensure!(status.contains(" 200"), "{status}");
    let mut tokens = Vec::new();
    while let Some(line) = lines.next_line().await? {
        let Some(data) = line.strip_prefix("data: ").filter(|data| *data != "[DONE]") else { continue };
        let data: Value = serde_json::from_str(data).with_context(|| line.clone())?;
        ensure!(data.get("error").is_none(), "{line}");
        let choice = &data["choices"][0];
        if choice["text"].as_str().is_some_and(str::is_empty) && !choice["finish_reason"].is_null() {
            continue;
        }
        tokens.push(Instant::now());
    }
    ensure!(!tokens.is_empty(), "no token");
    Ok(Served { begin, tokens })
}
