//! Jobs that `cargo xtask peers` runs beside the same jobs of other systems: `peers JOB KIND WORKERS NUMBER`.
//!
//! - `stuck`: the last worker sleeps, and up to NUMBER calls are queued. Prints the growth of this process's memory.
//! - `idle`: a session that does nothing until standard input ends.
//! - `syncs`, `syncs_of_one`, `calls`: syncs of all workers, syncs of the last one, or calls with 4 arguments, for NUMBER
//!   seconds. Prints their rate.
//! - `all_reduces`: `all_reduce` of 8 bytes for NUMBER seconds. Prints their rate.
//! - `wait`: rank 0 waits in an `all_reduce` for the other ranks, which sleep for NUMBER seconds.

#![allow(clippy::expect_used, reason = "a job that fails ends")]

use std::io::{self, Read as _, Write as _};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};
use std::{env, fs};

use disco::{
    Builder, DRef, DType, LaneSession, Op, Reduction, Result, SessionKind, Value, WorkerContext, WorkerId, block_on,
};
use futures_lite::FutureExt as _;

/// A call that has not returned after this time waits for room in a queue.
const BLOCKED: Duration = Duration::from_millis(200);
/// How long the stuck worker sleeps, in seconds.
const STUCK_SECONDS: f64 = 3.0;
/// Number of collectives between two looks at the clock.
const BATCH: usize = 100;

fn nop(_: &mut WorkerContext) -> Result<()> {
    Ok(())
}

fn nop_4(_: &mut WorkerContext, _: i64, _: f64, _: Arc<str>, _: Value) -> Result<()> {
    Ok(())
}

fn sleep(ctx: &mut WorkerContext, worker: i64, seconds: f64) -> Result<()> {
    if ctx.worker().wire() == worker {
        thread::sleep(Duration::from_secs_f64(seconds));
    }
    Ok(())
}

/// Returns the number of `all_reduce`s in `seconds`.
fn all_reduces(ctx: &mut WorkerContext, seconds: f64) -> Result<f64> {
    let mut tensor = || ctx.empty(DType::F32, [2]);
    let (src, dst, flag) = (tensor()?, tensor()?, tensor()?);
    let comm = ctx.comm()?;
    let group = [Op::AllReduce { src: Some(src), dst, reduction: Reduction::Sum }];
    let vote = [Op::AllReduce { src: None, dst: flag.clone(), reduction: Reduction::Sum }];
    let (start, mut count) = (Instant::now(), 0);
    loop {
        (0..BATCH).try_for_each(|_| comm.enqueue(&group))?;
        count += BATCH;
        let is_over = start.elapsed().as_secs_f64() >= seconds;
        flag.view_mut::<f32>()?.fill(f32::from(u8::from(is_over)));
        comm.enqueue(&vote)?;
        comm.synchronize()?;
        if flag.view::<f32>()?[0] > 0.0 {
            return Ok(count as f64 / start.elapsed().as_secs_f64());
        }
    }
}

fn wait(ctx: &mut WorkerContext, seconds: f64) -> Result<()> {
    let dst = ctx.empty(DType::F32, [2])?;
    let comm = ctx.comm()?;
    if comm.rank().index() > 0 {
        thread::sleep(Duration::from_secs_f64(seconds));
    }
    comm.enqueue(&[Op::AllReduce { src: None, dst, reduction: Reduction::Sum }])?;
    comm.synchronize()
}

disco::register_function!("peers.nop", nop);
disco::register_function!("peers.nop_4", nop_4);
disco::register_function!("peers.sleep", sleep);
disco::register_function!("peers.all_reduces", all_reduces);
disco::register_function!("peers.wait", wait);

fn ready() {
    println!("ready");
    io::stdout().flush().expect("it is open");
}

fn resident_bytes() -> u64 {
    let statm = fs::read_to_string("/proc/self/statm").expect("Linux has it");
    let pages: u64 = statm.split(' ').nth(1).and_then(|pages| pages.parse().ok()).expect("the second is resident");
    pages * 4096
}

/// Queues calls until one waits. Returns their number, the bytes that they took, and whether one waited.
async fn stuck(session: &LaneSession, workers: usize, limit: usize) -> Result<(usize, u64, bool)> {
    let nop = session.function("peers.nop").await?;
    let nop_4 = session.function("peers.nop_4").await?;
    let sleep = session.function("peers.sleep").await?;
    let object = session.call(&nop, ()).await?;
    for _ in 0..1000 {
        session.call(&nop_4, (1, 2.0, "three", &object)).await?;
    }
    session.sync_all().await?;
    let before = resident_bytes();
    session.call(&sleep, (workers as i64 - 1, STUCK_SECONDS)).await?;
    let mut calls = 0;
    while calls < limit {
        let call = async { session.call(&nop_4, (1, 2.0, "three", &object)).await.map(Some) };
        let blocked = async {
            blocking_timer(BLOCKED).await;
            Ok(None::<DRef>)
        };
        match call.or(blocked).await? {
            Some(_) => calls += 1,
            None => break,
        }
    }
    let bytes = resident_bytes().saturating_sub(before);
    session.sync_all().await?;
    Ok((calls, bytes, calls < limit))
}

/// Ends after `time`; costs nothing if it is dropped before its second poll.
async fn blocking_timer(time: Duration) {
    let start = Instant::now();
    let mut is_started = false;
    std::future::poll_fn(|context| {
        if start.elapsed() >= time {
            return std::task::Poll::Ready(());
        }
        if !is_started {
            is_started = true;
            let waker = context.waker().clone();
            thread::spawn(move || {
                thread::sleep(time);
                waker.wake();
            });
        }
        std::task::Poll::Pending
    })
    .await;
}

/// Repeats `operation` for `seconds`, and prints its rate.
async fn print_rate(seconds: f64, operation: impl AsyncFn() -> Result<()>) -> Result<()> {
    ready();
    let (start, mut count) = (Instant::now(), 0);
    while start.elapsed().as_secs_f64() < seconds {
        operation().await?;
        count += 1;
    }
    println!("{{\"per_second\": {:.1}}}", f64::from(count) / start.elapsed().as_secs_f64());
    Ok(())
}

async fn run(session: &LaneSession, job: &str, workers: usize, number: usize) -> Result<()> {
    let seconds = number as f64;
    if ["all_reduces", "wait"].contains(&job) {
        session.init_ccl("local", &[]).await?;
    }
    session.sync_all().await?;
    match job {
        "stuck" => {
            let (calls, bytes, bounded) = stuck(session, workers, number).await?;
            println!("{{\"calls\": {calls}, \"bytes\": {bytes}, \"bounded\": {bounded}}}");
        }
        "idle" => {
            ready();
            io::stdin().read_to_end(&mut Vec::new()).expect("it can be read");
        }
        "syncs" => print_rate(seconds, async || session.sync_all().await).await?,
        "syncs_of_one" => {
            let last = WorkerId::new(workers as u32 - 1);
            print_rate(seconds, async || session.sync_worker(last).await).await?;
        }
        "calls" => {
            let nop_4 = session.function("peers.nop_4").await?;
            let object = session.call("peers.nop", ()).await?;
            print_rate(seconds, async || session.call(&nop_4, (1, 2.0, "three", &object)).await.map(drop)).await?;
        }
        "all_reduces" => {
            ready();
            let rate = session.call("peers.all_reduces", (seconds,)).await?;
            let rate: f64 = session.get(&rate, WorkerId::new(0)).await?;
            println!("{{\"per_second\": {rate:.1}}}");
        }
        _ => {
            ready();
            session.call("peers.wait", (seconds,)).await?;
            session.sync_all().await?;
        }
    }
    Ok(())
}

fn main() {
    disco::init();
    let args: Vec<String> = env::args().skip(1).collect();
    let [job, kind, workers, number] = &args[..] else {
        eprintln!(
            "usage: peers stuck|idle|syncs|syncs_of_one|calls|all_reduces|wait threads|processes|nodes WORKERS NUMBER"
        );
        std::process::exit(2);
    };
    let kind: SessionKind = kind.parse().expect("a kind of session");
    let [workers, number] = [workers, number].map(|number| number.parse().expect("a number"));
    let session = match kind {
        SessionKind::Nodes => Builder::new(kind, workers).node_options(|nodes| nodes.count = 2).start(),
        _ => Builder::new(kind, workers).start(),
    };
    let session = session.expect("workers can be started");
    block_on(run(&session, job, workers, number)).expect("workers live");
    block_on(session.shutdown()).expect("workers live");
}
