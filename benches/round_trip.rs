//! How long does a sync of one worker take, and of all workers? And a call with its result?

use std::time::{Duration, Instant};

use criterion::{Criterion, criterion_group};
use disco::{SessionKind, WorkerId, block_on};

use crate::common::{self, spin, tcp};

/// Number of round trips of one measurement.
const TRIPS: u32 = 500;

fn round_trip(criterion: &mut Criterion) {
    let (session, workers, kind) = common::session();
    let last = WorkerId::new(workers as u32 - 1);
    let mut group = criterion.benchmark_group(format!("round_trip/{kind} {workers}"));
    let one = || block_on(session.sync_worker(last)).expect("live");
    let all = || block_on(session.sync_all()).expect("live");
    group.bench_function("one worker", |bencher| bencher.iter(one));
    group.bench_function("all workers", |bencher| bencher.iter(all));
    group.finish();
    common::print_placement();
    let trip = |run: &dyn Fn()| {
        let start = Instant::now();
        (0..TRIPS).for_each(|_| run());
        start.elapsed() / TRIPS
    };
    let name = format!("round_trip/{kind} {workers}");
    let (mut spinning, mut crowd) = (|| spin::ping_pong(1), || spin::ping_pong(workers));
    common::compare(&format!("{name}/one worker, beside spinning"), || trip(&one), &mut [("spinning", &mut spinning)]);
    common::compare(&format!("{name}/one worker, beside parked"), || trip(&one), &mut [("parked", &mut spin::parked)]);
    if kind == SessionKind::Nodes {
        let floor: &mut dyn FnMut() -> Duration = &mut tcp::round_trip;
        common::compare(&format!("{name}/one worker, beside TCP"), || trip(&one), &mut [("TCP", floor)]);
    }
    common::compare(&format!("{name}/all workers"), || trip(&all), &mut [("spinning", &mut crowd)]);
    let count = block_on(session.function("benches.count")).expect("registered");
    let returning = || {
        let returned = async { session.call_returning(last, &count, ()).await?.await };
        block_on(returned).map(drop).expect("live");
    };
    let in_two = || {
        let value = async { session.value(&session.call(&count, ()).await?, last).await };
        block_on(value).map(drop).expect("live");
    };
    let mut two: &mut dyn FnMut() -> Duration = &mut || trip(&in_two);
    common::compare(&format!("{name}/call_returning"), || trip(&returning), &mut [("call and value", &mut two)]);
}

criterion_group!(benches, round_trip);

pub(crate) fn main() {
    common::run(benches);
}
