//! What does it cost to record an operation, a command or a span, compared with two readings of the system's clock?

#![allow(missing_docs, clippy::expect_used, reason = "criterion's macros; a benchmark that fails ends")]

use std::hint::black_box;
use std::time::{Duration, Instant};

use criterion::{Criterion, criterion_group, criterion_main};
use disco::activity::{Activity, OpPlace, RecorderConfig, span};
use disco::trace::WorkerSpans;
use disco::{
    Builder, DType, Op, Reduction, RegisterId, Session as _, SessionExt as _, Tensor, WorkerContext, WorkerId, block_on,
};
use disco_core::Command;
use tracing::subscriber::with_default;
use tracing_subscriber::layer::SubscriberExt as _;
use tracing_subscriber::registry;

fn records(criterion: &mut Criterion) {
    let dst = Tensor::zeros(DType::F32, [64]).expect("there is room");
    let op = Op::AllReduce { src: None, dst, reduction: Reduction::Sum };
    let call = Command::CallPacked { register: RegisterId::new(7), function: RegisterId::new(3), args: Vec::new() };
    let mut group = criterion.benchmark_group("records");
    group.bench_function("two readings of Instant", |bencher| {
        bencher.iter(|| black_box(Instant::now()) - black_box(Instant::now()));
    });
    for (name, config) in [("", RecorderConfig::DEFAULT), (", timeline", RecorderConfig::new(1 << 16, true))] {
        let activity = Activity::new(config);
        let (comm, function) = (activity.intern("plane"), activity.intern("train.step"));
        let mut number = 0;
        group.bench_function(format!("operation{name}"), |bencher| {
            bencher.iter(|| {
                number += 1;
                activity.start_op(black_box(&op), 2, OpPlace::new(comm, number)).end(true);
            });
        });
        let more = vec![op.clone(); 7];
        group.bench_function(format!("group of 8 operations{name}"), |bencher| {
            bencher.iter(|| {
                number += 8;
                activity.start_ops(black_box(&op), black_box(&more), 2, OpPlace::new(comm, number)).end(true);
            });
        });
        group.bench_function(format!("command{name}"), |bencher| {
            bencher.iter(|| {
                number += 1;
                activity.receive(number);
                activity.start_command(black_box(&call));
                activity.enter(function);
                activity.leave();
                activity.finish(number, true);
            });
        });
    }
    let session = Builder::threads(1).timeline(1 << 16, drop).start().expect("a session");
    let spans = block_on(session.function("bench.spans")).expect("the function");
    for (kind, name) in SPANS.iter().enumerate() {
        group.bench_function(*name, |bencher| {
            bencher.iter_custom(|count| {
                let took = block_on(async {
                    let took = session.call(&spans, (kind as i64, count as i64)).await?;
                    session.get_as::<f64>(&took, WorkerId::new(0)).await
                });
                Duration::from_secs_f64(took.expect("the time"))
            });
        });
    }
    block_on(session.shutdown()).expect("the end");
    group.finish();
}

/// The kinds of spans that [`spans`] enters.
const SPANS: [&str; 3] = ["span, timeline", "span of tracing, registry only", "span of tracing, registry and timeline"];

/// The time of `count` spans, in seconds.
fn spans(_: &mut WorkerContext, kind: i64, count: i64) -> disco::Result<f64> {
    let entered = || {
        let start = Instant::now();
        (0..count).for_each(|_| drop(black_box(tracing::info_span!("work").entered())));
        start.elapsed().as_secs_f64()
    };
    Ok(match kind {
        0 => {
            let start = Instant::now();
            (0..count).for_each(|_| drop(black_box(span("work"))));
            start.elapsed().as_secs_f64()
        }
        1 => with_default(registry(), entered),
        _ => with_default(registry().with(WorkerSpans::new()), entered),
    })
}

disco::register_function!("bench.spans", spans);

criterion_group!(benches, records);
criterion_main!(benches);
