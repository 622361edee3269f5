//! A session in a program that uses tokio: `cargo run` in this folder.
//!
//! A session's futures run on any executor. `Builder::start` blocks, so it runs on a thread for blocking work.

use std::error::Error;
use std::sync::Arc;
use std::time::Duration;

use disco::prelude::*;
use tokio::task::{JoinSet, spawn_blocking};
use tokio::time::timeout;

/// Worker function: this worker's share of the sum of all squares below `count`.
fn squares(ctx: &mut WorkerContext, count: u64) -> disco::Result<u64> {
    let (worker, workers) = (ctx.worker().index() as u64, ctx.world().size());
    Ok((worker..count).step_by(workers).map(|x| x * x).sum())
}

disco::register_function!("example.squares", squares);

/// Worker function: takes `millis` milliseconds.
fn sleep(_: &mut WorkerContext, millis: u64) -> disco::Result<u64> {
    std::thread::sleep(Duration::from_millis(millis));
    Ok(millis)
}

disco::register_function!("example.sleep", sleep);

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let session = Arc::new(spawn_blocking(|| Builder::threads(4).start()).await??);
    let squares = session.function("example.squares").await?;

    // Tasks share the session. Every worker sees their calls in one order.
    let mut tasks = JoinSet::new();
    for count in [10u64, 100, 1000] {
        let (session, squares) = (session.clone(), squares.clone());
        tasks.spawn(async move {
            let shares = session.call(&squares, (count,)).await?;
            let mut sum = 0;
            for worker in session.world().workers() {
                sum += session.get::<u64>(&shares, worker).await?;
            }
            Ok::<_, disco::Error>((count, sum))
        });
    }
    while let Some(done) = tasks.join_next().await {
        let (count, sum) = done??;
        println!("the squares below {count} sum up to {sum}");
        assert_eq!(sum, (0..count).map(|x| x * x).sum::<u64>());
    }

    // The timeout drops the wait. The workers go on, and a later wait is complete.
    let slept = session.call("example.sleep", (300,)).await?;
    assert!(timeout(Duration::from_millis(10), session.sync_all()).await.is_err());
    assert_eq!(session.get_all::<u64>(&slept).await?, [300; 4]);
    // Dropping a session without a shutdown would block the executor.
    session.shutdown().await?;
    Ok(())
}
