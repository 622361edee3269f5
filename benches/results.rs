//! How many results does a running call send?

use std::time::{Duration, Instant};

use crate::common;
use criterion::{Criterion, Throughput, criterion_group};
use disco::{LaneSession, Result, Value, WorkerContext, WorkerId, block_on};

/// Results of each worker in one call.
const COUNT: i64 = 1000;

disco::register_function!("results.emit", emit);
disco::register_function!("results.number", number);

fn emit(ctx: &mut WorkerContext, count: i64) -> Result<()> {
    (0..count).try_for_each(|number| ctx.emit(number))
}

fn number(_: &mut WorkerContext) -> Result<i64> {
    Ok(7)
}

/// The time of one call whose results are taken as they come.
fn taken(session: &LaneSession) -> Duration {
    block_on(async {
        let emit = session.function("results.emit").await?;
        let start = Instant::now();
        let mut results = session.call_streaming(&emit, (COUNT,)).await?;
        let mut sum = 0;
        while let Some(result) = results.next().await {
            let (_, Value::Int(number)) = result? else { panic!("not a number") };
            sum += number;
        }
        assert_eq!(sum, COUNT * (COUNT - 1) / 2 * session.world().size() as i64);
        Ok::<_, disco::Error>(start.elapsed())
    })
    .expect("a live session")
}

/// The time of as many gets of one number as the call has results.
fn gets(session: &LaneSession) -> Duration {
    block_on(async {
        let number = session.call("results.number", ()).await?;
        let start = Instant::now();
        for _ in 0..COUNT * session.world().size() as i64 {
            session.value(&number, WorkerId::new(0)).await?;
        }
        Ok::<_, disco::Error>(start.elapsed())
    })
    .expect("a live session")
}

fn results(criterion: &mut Criterion) {
    let (session, workers, kind) = common::session();
    let name = format!("results/{kind} {workers}");
    let mut group = criterion.benchmark_group("results");
    group.throughput(Throughput::Elements(COUNT as u64 * workers as u64));
    group.bench_function(format!("{kind} {workers}"), |bencher| {
        bencher.iter_custom(|times| (0..times).map(|_| taken(&session)).sum());
    });
    group.finish();
    common::compare(&name, || taken(&session), &mut [("as many gets of a number", &mut || gets(&session))]);
}

criterion_group!(benches, results);

pub(crate) fn main() {
    common::run(benches);
}
