//! Workers search for divisors, each in a range of its own. The first result ends the search.
//! `cargo run --release --example search`

use disco::error::ErrorKind;
use disco::{Builder, LaneSession, Result, Value, WorkerContext, WorkerId};

/// A product of two primes.
const NUMBER: u64 = 1_000_003 * 998_244_353;

/// Numbers between two questions whether the search is over.
const STEP: u64 = 1 << 16;

/// Sends each divisor of `NUMBER` among every `size`-th number, beginning with 2 and this worker's number. Returns how far
/// it came.
fn search(ctx: &mut WorkerContext) -> Result<u64> {
    let (first, size) = (2 + ctx.worker().index() as u64, ctx.world().size() as u64);
    for (step, candidate) in (first..NUMBER).step_by(size as usize).enumerate() {
        if (step as u64).is_multiple_of(STEP) && ctx.cancelled() {
            return Ok(candidate);
        }
        if NUMBER.is_multiple_of(candidate) {
            ctx.emit(candidate as i64)?;
        }
    }
    Ok(NUMBER)
}

disco::register_function!("search.divisors", search);

async fn find(session: &LaneSession) -> Result<(WorkerId, Value)> {
    let search = session.function("search.divisors").await?;
    let mut divisors = session.call_streaming(&search, ()).await?;
    let found = divisors.next().await.unwrap_or_else(|| Err(disco::Error::Invalid("it is a prime".into())))?;
    let call = divisors.call().clone();
    // Cancels the call.
    drop(divisors);
    for worker in session.world().workers() {
        match session.get::<u64>(&call, worker).await {
            Ok(reached) => println!("{worker} has searched up to {reached}"),
            Err(error) if error.kind() == ErrorKind::Cancelled => println!("{worker} had not begun"),
            Err(error) => return Err(error),
        }
    }
    Ok(found)
}

fn main() -> Result<()> {
    let session = Builder::threads(2).start()?;
    disco::block_on(async {
        let (worker, divisor) = find(&session).await?;
        println!("{worker} has found {divisor}");
        assert_eq!(divisor, Value::Int(1_000_003));
        session.shutdown().await
    })
}
