//! How long does it take from the death of a worker process to the next finished `all_reduce`?

#![allow(missing_docs, clippy::expect_used, reason = "criterion's macros; a benchmark that fails ends")]

#[path = "common/mod.rs"]
mod common;

use std::time::{Duration, Instant};

use criterion::{Criterion, criterion_group};
use disco::{
    Builder, CommunicatorExt as _, DType, DataPlane as _, LaneSession, Reduction, Result, Session as _,
    SessionExt as _, WorkerContext, WorkerId, block_on,
};

disco::register_function!("benches.sum", sum);
disco::register_function!("benches.die", die);

fn sum(ctx: &mut WorkerContext) -> Result<f64> {
    let tensor = ctx.empty(DType::F64, [1])?;
    tensor.write(&[ctx.worker().index() as f64])?;
    ctx.comm()?.all_reduce_in_place(&tensor, Reduction::Sum)?;
    Ok(tensor.to_vec::<f64>()?[0])
}

/// Ends the process of the last worker, as if it was killed.
fn die(ctx: &mut WorkerContext) -> Result<()> {
    match ctx.worker().index() + 1 == ctx.world().size() {
        true => std::process::abort(),
        false => Ok(()),
    }
}

async fn check_sum(session: &LaneSession, workers: usize) -> Result<()> {
    let sum = session.call_named("benches.sum", ()).await?;
    let sum: f64 = session.get_as(&sum, WorkerId::new(0)).await?;
    assert_eq!(sum, (workers * (workers - 1) / 2) as f64, "the sum is right");
    Ok(())
}

/// The time from the loss of the last worker, as the session reports it, to the sum of all workers; and from its death to
/// the report.
fn survive(session: &LaneSession, workers: usize) -> (Duration, Duration) {
    let survived = block_on(async {
        session.call_named("benches.die", ()).await?;
        let died = Instant::now();
        session.sync_all().await.expect_err("a worker is lost");
        let lost = Instant::now();
        session.replace_lost().await?;
        session.init_ccl("local", &[]).await?;
        check_sum(session, workers).await?;
        Ok::<_, disco::Error>((lost.elapsed(), lost - died))
    });
    survived.expect("the worker can be replaced")
}

/// [`survive`], from the loss to the sum, once a spare waits.
fn survive_with_spare(session: &LaneSession, workers: usize) -> Duration {
    while !session.status().spares.iter().any(|spare| spare.is_ready) {
        std::thread::sleep(Duration::from_millis(1));
    }
    survive(session, workers).0
}

/// The time of a new session of this size until its first sum.
fn start(workers: usize) -> Duration {
    let started = block_on(async {
        let begun = Instant::now();
        let session = Builder::processes(workers).start()?;
        session.init_ccl("local", &[]).await?;
        check_sum(&session, workers).await?;
        let took = begun.elapsed();
        session.shutdown().await.map(|()| took)
    });
    started.expect("workers can be started")
}

fn replacement(criterion: &mut Criterion) {
    let workers = common::settings(4).workers.max(2);
    let begin = |spares: usize| {
        let session = Builder::processes(workers).spares(spares).start().expect("workers can be started");
        block_on(session.init_ccl("local", &[])).expect("`local` is always there");
        session
    };
    let (session, with_spare) = (begin(0), begin(1));
    let mut group = criterion.benchmark_group(format!("replacement/{workers} processes"));
    group.sample_size(10);
    group.bench_function("from the report of the loss to the next sum", |bencher| {
        bencher.iter_custom(|iters| (0..iters).map(|_| survive(&session, workers).0).sum());
    });
    group.bench_function("from the report of the loss to the next sum, with a spare", |bencher| {
        bencher.iter_custom(|iters| (0..iters).map(|_| survive_with_spare(&with_spare, workers)).sum());
    });
    group.bench_function("from the death to the report", |bencher| {
        bencher.iter_custom(|iters| (0..iters).map(|_| survive(&session, workers).1).sum());
    });
    group.finish();
    common::compare(
        &format!("replacement/{workers} processes"),
        || survive(&session, workers).0,
        &mut [
            ("with a spare", &mut || survive_with_spare(&with_spare, workers)),
            ("a new session", &mut || start(workers)),
            ("a new session of one process", &mut || start(2)),
        ],
    );
    [session, with_spare].iter().for_each(|session| block_on(session.shutdown()).expect("live"));
}

criterion_group!(benches, replacement);

fn main() {
    common::run(benches);
}
