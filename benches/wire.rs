//! The cost of encoding and decoding a command, beside that of copying its bytes.

use std::hint::black_box;
use std::time::{Duration, Instant};

use crate::common;
use criterion::{BatchSize, Criterion, Throughput, criterion_group};
use disco::{DType, RegisterId, Shape, Tensor, Value, WorkerId};
use disco_core::{Command, Frame, wire};

/// Number of repetitions of one measurement.
const TIMES: u32 = 1000;

/// Typical commands.
fn commands() -> Vec<(&'static str, Command)> {
    let (register, function) = (RegisterId::new(7), RegisterId::new(3));
    let call = |args| Command::CallPacked { register, function, args };
    let four = vec![Value::Int(1), Value::Float(2.0), "three".into(), Value::Register(RegisterId::new(5))];
    let shape = vec![Value::Shape(Shape::from([8, 1024, 4096])), Value::DType(DType::BF16)];
    let tensor = Tensor::zeros(DType::F32, [4096]).expect("there is room");
    vec![
        ("call, 0 arguments", call(Vec::new())),
        ("call, 4 arguments", call(four)),
        ("call, shape and dtype", call(shape)),
        ("call, tensor of 16 KiB", call(vec![Value::Tensor(tensor)])),
        ("look up", Command::GetGlobalFunc { register, name: "disco.all_reduce".into() }),
        ("sync", Command::SyncWorker { worker: WorkerId::new(3) }),
    ]
}

fn frame(command: &Command) -> Frame {
    Frame::new(1, [RegisterId::new(9)], command.clone())
}

fn wire(criterion: &mut Criterion) {
    for (name, command) in commands() {
        let whole = frame(&command);
        let bytes = whole.bytes().expect("it can be written").to_vec();
        let read = wire::decode_frame(1, &bytes).expect("it can be read");
        assert_eq!(read.bytes().expect("it can be written again"), bytes, "{name}");
        let mut group = criterion.benchmark_group(format!("wire/{name}"));
        group.throughput(Throughput::Bytes(bytes.len() as u64));
        group.bench_function("write", |bencher| {
            bencher.iter_batched_ref(
                || frame(&command),
                |frame| frame.bytes().expect("it can be written").len(),
                BatchSize::SmallInput,
            );
        });
        group.bench_function("read", |bencher| {
            bencher.iter(|| wire::decode_frame(1, black_box(&bytes)).expect("it can be read"));
        });
        group.finish();
        let mut copy = bytes.clone();
        let mut floor = || time(|| black_box(&mut copy).copy_from_slice(black_box(&bytes)));
        let write = || {
            let frames: Vec<Frame> = (0..TIMES).map(|_| frame(&command)).collect();
            let start = Instant::now();
            frames.iter().for_each(|frame| _ = black_box(frame.bytes()));
            start.elapsed() / TIMES
        };
        common::compare(&format!("wire/{name}/write"), write, &mut [("memcpy", &mut floor)]);
        let read = || time(|| _ = black_box(wire::decode_frame(1, black_box(&bytes))));
        common::compare(&format!("wire/{name}/read"), read, &mut [("memcpy", &mut floor)]);
    }
}

/// The time of one `work`.
fn time(mut work: impl FnMut()) -> Duration {
    let start = Instant::now();
    (0..TIMES).for_each(|_| work());
    start.elapsed() / TIMES
}

criterion_group!(benches, wire);

pub(crate) fn main() {
    common::run(benches);
}
