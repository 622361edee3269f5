//! How long until a worker, or all of them, have answered?

#![allow(missing_docs, clippy::expect_used, reason = "criterion's macros; a benchmark that fails ends")]

#[path = "common/mod.rs"]
mod common;

use criterion::{Criterion, criterion_group, criterion_main};
use disco::{Session, WorkerId, block_on};

fn round_trip(criterion: &mut Criterion) {
    let (session, workers) = common::session();
    let last = WorkerId::new(workers as u32 - 1);
    let mut group = criterion.benchmark_group(format!("round_trip/threads {workers}"));
    group.bench_function("one worker", |bencher| {
        bencher.iter(|| block_on(session.sync_worker(last)).expect("live"));
    });
    group.bench_function("all workers", |bencher| {
        bencher.iter(|| block_on(session.sync_all()).expect("live"));
    });
    group.finish();
}

criterion_group!(benches, round_trip);
criterion_main!(benches);
