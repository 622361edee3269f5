//! The cost of recording an operation, a command or a span, beside two readings of the system's clock and a small
//! collective. With the feature `metrics`: the time that metrics add to a collective.

use std::hint::black_box;
use std::time::{Duration, Instant};

use crate::common;
use criterion::{Criterion, criterion_group};
use disco::activity::{Activity, OpPlace, RecorderConfig, TimeLimit, span};
use disco::trace::WorkerSpans;
use disco::{
    Builder, CommunicatorExt as _, DType, Op, Reduction, RegisterId, Tensor, WorkerContext, WorkerId, block_on,
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
                activity.enter(function, TimeLimit::Call);
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
                    session.get::<f64>(&took, WorkerId::new(0)).await
                });
                Duration::from_secs_f64(took.expect("the time"))
            });
        });
    }
    block_on(session.shutdown()).expect("the end");
    group.finish();
}

/// All-reduces of 8 bytes: among two threads, and of one rank, which waits for none, so that the cost of metrics shows.
fn collectives(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("records");
    let mut measure = |workers: usize, name: &str| {
        let session = Builder::threads(workers).start().expect("a session");
        block_on(session.init_ccl("local", &[])).expect("a data plane");
        let sums = block_on(session.function("bench.sums")).expect("the function");
        group.bench_function(name, |bencher| {
            bencher.iter_custom(|count| {
                let took = block_on(async {
                    let took = session.call(&sums, (count as i64,)).await?;
                    session.get::<f64>(&took, WorkerId::new(0)).await
                });
                Duration::from_secs_f64(took.expect("the time"))
            });
        });
        block_on(session.shutdown()).expect("the end");
    };
    measure(2, "all_reduce of 8 B, 2 threads");
    measure(1, "all_reduce of 8 B, 1 rank");
    #[cfg(feature = "metrics")]
    {
        metrics::set_global_recorder(recorder::Sums::default()).expect("the only recorder");
        measure(2, "all_reduce of 8 B, 2 threads, metrics");
        measure(1, "all_reduce of 8 B, 1 rank, metrics");
    }
    group.finish();
}

/// The time of `count` all-reduces of 8 bytes, in seconds.
fn sums(ctx: &mut WorkerContext, count: i64) -> disco::Result<f64> {
    let x = ctx.empty(DType::F32, 2)?;
    let start = Instant::now();
    for _ in 0..count {
        ctx.comm()?.all_reduce_in_place(&x, Reduction::Sum)?;
    }
    Ok(start.elapsed().as_secs_f64())
}

disco::register_function!("bench.sums", sums);

/// A recorder as exporters have one: a map behind a lock that readers share.
#[cfg(feature = "metrics")]
mod recorder {
    use std::collections::HashMap;
    use std::sync::atomic::{AtomicU64, Ordering};
    use std::sync::{Arc, PoisonError, RwLock};

    use metrics::{
        Counter, CounterFn, Gauge, Histogram, HistogramFn, Key, KeyName, Metadata, Recorder, SharedString, Unit,
    };

    #[derive(Default)]
    pub(super) struct Sums(RwLock<HashMap<Key, Arc<Sum>>>);

    #[derive(Default)]
    struct Sum {
        count: AtomicU64,
        sum: AtomicU64,
    }

    impl Sums {
        fn sum(&self, key: &Key) -> Arc<Sum> {
            if let Some(sum) = self.0.read().unwrap_or_else(PoisonError::into_inner).get(key) {
                return sum.clone();
            }
            self.0.write().unwrap_or_else(PoisonError::into_inner).entry(key.clone()).or_default().clone()
        }
    }

    impl CounterFn for Sum {
        fn increment(&self, value: u64) {
            self.sum.fetch_add(value, Ordering::Relaxed);
        }

        fn absolute(&self, value: u64) {
            self.sum.store(value, Ordering::Relaxed);
        }
    }

    impl HistogramFn for Sum {
        fn record(&self, value: f64) {
            self.count.fetch_add(1, Ordering::Relaxed);
            self.sum.fetch_add((value * 1e9) as u64, Ordering::Relaxed);
        }
    }

    impl Recorder for Sums {
        fn describe_counter(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}
        fn describe_gauge(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}
        fn describe_histogram(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}

        fn register_counter(&self, key: &Key, _: &Metadata<'_>) -> Counter {
            Counter::from_arc(self.sum(key))
        }

        fn register_gauge(&self, _: &Key, _: &Metadata<'_>) -> Gauge {
            Gauge::noop()
        }

        fn register_histogram(&self, key: &Key, _: &Metadata<'_>) -> Histogram {
            Histogram::from_arc(self.sum(key))
        }
    }
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

criterion_group!(benches, records, collectives);

pub(crate) fn main() {
    common::run(benches);
}
