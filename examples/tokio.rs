//! A session in a program that uses tokio: `cargo run --example tokio`.
//!
//! A session's futures run on any executor. `Builder::start` blocks, so it runs on a thread for blocking work.

use std::error::Error;
use std::sync::Arc;
use std::time::Duration;

use disco::{Builder, Result, Session, SessionExt, WorkerContext};
use tokio::task::{JoinSet, spawn_blocking};

/// Worker function: this worker's share of the sum of all squares below `count`.
fn squares(ctx: &mut WorkerContext, count: u64) -> Result<u64> {
    let (worker, workers) = (ctx.worker().index() as u64, ctx.world().size());
    Ok((worker..count).step_by(workers).map(|x| x * x).sum())
}

disco::register_function!("example.squares", squares);

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
                sum += session.get_as::<u64>(&shares, worker).await?;
            }
            Ok::<_, disco::Error>((count, sum))
        });
    }
    while let Some(done) = tasks.join_next().await {
        let (count, sum) = done??;
        println!("the squares below {count} sum up to {sum}");
        assert_eq!(sum, (0..count).map(|x| x * x).sum::<u64>());
    }

    // If a timeout drops a wait, the reply is discarded, and the workers go on.
    tokio::time::timeout(Duration::from_secs(30), session.sync_all()).await??;
    // Dropping a session without a shutdown would block the executor.
    session.shutdown().await?;
    Ok(())
}
