//! The cost of a collective whose ranks are processes, beside one whose ranks are threads.

use std::time::{Duration, Instant};

use crate::common;
use criterion::{BenchmarkId, Criterion, Throughput, criterion_group};
use disco::{
    Builder, CommunicatorExt as _, DType, Error, Reduction, Result, Session, SessionKind, Tensor, WorkerContext,
    block_on,
};

/// Sizes of a tensor, in bytes.
const SIZES: [usize; 5] = [8, 64 << 10, 1 << 20, 16 << 20, 64 << 20];
const WORKERS: usize = 2;
/// Duration of one round of a comparison, in seconds.
const ROUND_SECONDS: f64 = 0.01;

disco::register_function!("benches.all_reduce", all_reduce);

/// Returns the seconds of `iters` sums, each of newly written elements, like gradients. The tensors are in memory that
/// peers can reach, or in private memory.
fn all_reduce(ctx: &mut WorkerContext, count: usize, is_private: bool, iters: u64) -> Result<f64> {
    let mut tensor =
        || if is_private { Tensor::zeros(DType::F32, [count as i64]) } else { ctx.empty(DType::F32, [count as i64]) };
    let (src, dst) = (tensor()?, tensor()?);
    dst.view_mut::<f32>()?.fill(0.0);
    let (mut seconds, size) = (0.0, ctx.world().size());
    for round in 0..iters {
        src.view_mut::<f32>()?.fill(round as f32);
        let comm = ctx.comm()?;
        comm.barrier()?;
        let start = Instant::now();
        comm.all_reduce(&src, &dst, Reduction::Sum)?;
        seconds += start.elapsed().as_secs_f64();
    }
    let sum = (iters - 1) as f32 * size as f32;
    let is_right = dst.view::<f32>()?.iter().all(|element| *element == sum);
    if is_right { Ok(seconds) } else { Err(Error::invalid("the sum is wrong")) }
}

/// The time of so many on the slowest rank.
fn time(session: &dyn Session, bytes: usize, is_private: bool, iters: u64) -> Duration {
    common::slowest(session, "benches.all_reduce", ((bytes / 4) as i64, is_private, iters as i64))
}

fn processes(criterion: &mut Criterion) {
    let [threads, processes] = [SessionKind::Threads, SessionKind::Processes].map(|kind| {
        let session = Builder::new(kind, WORKERS).start().expect("workers can be started");
        block_on(session.init_ccl("local", &[])).expect("`local` is always there");
        session
    });
    common::print_placement();
    for (name, is_private) in [("shared tensors", false), ("private tensors", true)] {
        let mut group = criterion.benchmark_group(format!("all_reduce among processes/{name}"));
        let sizes = if common::measures() { &SIZES[..] } else { &SIZES[..2] };
        for &bytes in sizes {
            group.throughput(Throughput::Bytes(bytes as u64));
            group.bench_function(BenchmarkId::from_parameter(bytes), |bencher| {
                bencher.iter_custom(|iters| time(&processes, bytes, is_private, iters));
            });
        }
        group.finish();
        for &bytes in sizes {
            let iters = (ROUND_SECONDS / (0.4e-6 + bytes as f64 / 10e9)).max(5.0) as u64;
            let run = |session| time(session, bytes, is_private, iters) / iters as u32;
            common::compare(
                &format!("all_reduce among processes/{name}/{bytes}"),
                || run(&processes as &dyn Session),
                &mut [("threads", &mut || time(&threads, bytes, false, iters) / iters as u32)],
            );
        }
        common::print_placement();
    }
    for session in [threads, processes] {
        block_on(session.shutdown()).expect("live");
    }
}

criterion_group!(benches, processes);

pub(crate) fn main() {
    common::run(benches);
}
