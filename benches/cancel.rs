//! How long after a cancellation has a collective ended on all ranks?

use std::thread;
use std::time::{Duration, Instant};

use crate::common;
use criterion::{Criterion, criterion_group};
use disco::{CommunicatorExt as _, LaneSession, Reduction, Result, Tensor};
use disco::{WorkerContext, block_on};

/// Time until the other ranks wait for worker 0 in the collective.
const UNTIL_INSIDE: Duration = Duration::from_millis(5);

disco::register_function!("cancel.sum_without_0", sum_without_0);

/// A sum that worker 0 does not join.
fn sum_without_0(ctx: &mut WorkerContext) -> Result<()> {
    if ctx.worker().index() == 0 {
        while !ctx.cancelled() {
            thread::yield_now();
        }
        return Ok(());
    }
    let x = Tensor::from_slice(&[1i64], [1])?;
    ctx.comm()?.all_reduce_in_place(&x, Reduction::Sum)
}

/// The time from a cancellation until all workers have ended the call.
fn cancelled(session: &LaneSession) -> Duration {
    block_on(async {
        session.init_ccl("local", &[]).await?;
        let call = session.call("cancel.sum_without_0", ()).await?;
        thread::sleep(UNTIL_INSIDE);
        let start = Instant::now();
        session.cancel(&call, "measured")?;
        session.sync_all().await?;
        Ok::<_, disco::Error>(start.elapsed())
    })
    .expect("a cancelled call does not fail the session")
}

fn cancel(criterion: &mut Criterion) {
    let (session, workers, kind) = common::session();
    let name = format!("cancel/{kind} {workers}");
    criterion.bench_function(&name, |bencher| {
        bencher.iter_custom(|times| (0..times).map(|_| cancelled(&session)).sum());
    });
    let mut sync = || {
        let start = Instant::now();
        block_on(session.sync_all()).expect("live");
        start.elapsed()
    };
    common::compare(&name, || cancelled(&session), &mut [("sync of all workers", &mut sync)]);
}

criterion_group!(benches, cancel);

pub(crate) fn main() {
    common::run(benches);
}
