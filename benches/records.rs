//! What does it cost to record an operation or a command, compared with two readings of the system's clock?

#![allow(missing_docs, clippy::expect_used, reason = "criterion's macros; a benchmark that fails ends")]

use std::hint::black_box;
use std::time::Instant;

use criterion::{Criterion, criterion_group, criterion_main};
use disco::activity::{Activity, OpPlace, RecorderConfig};
use disco::{DType, Op, Reduction, RegisterId, Tensor};
use disco_core::Command;

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
    group.finish();
}

criterion_group!(benches, records);
criterion_main!(benches);
