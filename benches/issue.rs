//! The cost of a call, from its submission until all workers have executed it. The handle is dropped at once.

use std::sync::Arc;
use std::time::Instant;

use crate::common;
use criterion::{Criterion, Throughput, criterion_group};
use disco::{DRef, IntoArgs, LaneSession, Result, Value, WorkerContext, WorkerId, block_on, placement};

/// Number of calls before each sync. It exceeds the capacity of a lane, so that back-pressure is included.
const CALLS: u64 = 5_000;

fn count(_: &mut WorkerContext) -> Result<i64> {
    Ok(0)
}

fn count_4(_: &mut WorkerContext, int: i64, _: f64, text: Arc<str>, _: Value) -> Result<i64> {
    Ok(int + text.len() as i64)
}

disco::register_function!("benches.count", count);
disco::register_function!("benches.count_4", count_4);

fn issue(criterion: &mut Criterion) {
    let (session, workers, kind) = common::session();
    let (f, g, object) = block_on(async {
        let f = session.function("benches.count").await.expect("registered");
        let g = session.function("benches.count_4").await.expect("registered");
        let object = session.call(&f, ()).await.expect("live");
        let result = session.call(&g, (1, 2.0, "three", &object)).await.expect("live");
        let last = WorkerId::new(workers as u32 - 1);
        assert_eq!(session.value(&result, last).await.expect("live"), Value::Int(6));
        (f, g, object)
    });
    let mut group = criterion.benchmark_group(format!("issue/{kind} {workers}"));
    group.throughput(Throughput::Elements(CALLS));
    let without = || block_on(calls(&session, &f, || ())).expect("live");
    let with = || block_on(calls(&session, &g, || (1, 2.0, "three", &object))).expect("live");
    group.bench_function("0 arguments", |bencher| bencher.iter(without));
    group.bench_function("4 arguments", |bencher| bencher.iter(with));
    group.finish();
    common::print_placement();
    let per_call = |run: &dyn Fn()| {
        let start = Instant::now();
        run();
        start.elapsed() / CALLS as u32
    };
    let mut hop = || placement::cache_line_latency().unwrap_or_default();
    let name = format!("issue/{kind} {workers}");
    common::compare(&format!("{name}/0 arguments"), || per_call(&without), &mut [("a hop", &mut hop)]);
    common::compare(&format!("{name}/4 arguments"), || per_call(&with), &mut [("a hop", &mut hop)]);
}

/// Submits calls, drops each handle at once, and waits until all workers have executed all calls.
async fn calls<A: IntoArgs>(session: &LaneSession, function: &DRef, args: impl Fn() -> A) -> Result<()> {
    for _ in 0..CALLS {
        session.call(function, args()).await?;
    }
    session.sync_all().await
}

criterion_group!(benches, issue);

pub(crate) fn main() {
    common::run(benches);
}
