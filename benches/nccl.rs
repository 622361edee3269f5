//! What does the backend `nccl` add to NCCL's own calls?
//!
//! On the real library where there is one with a GPU; else on the test double, which shows what a call costs before the GPU has it, and
//! nothing about GPUs. One rank: what is measured is the host's part.

#![allow(missing_docs, clippy::expect_used, reason = "criterion's macros; a benchmark that fails ends")]
#![allow(unsafe_code, reason = "NCCL's own calls")]

#[path = "common/mod.rs"]
mod common;

use std::env;
use std::process::{self, Command};
use std::time::{Duration, Instant};

use criterion::{BenchmarkId, Criterion, criterion_group};
use disco::nccl::disco_ccl::Config;
use disco::nccl::disco_ccl::abi::{Code, Comm, DataType, RedOp};
use disco::{
    Backend as _, Builder, DType, DataPlane as _, Error, Op, Reduction, Result, Session as _, WorkerContext, block_on,
};

/// Calls in a row, which a stream takes without a pause.
const CALLS: usize = 200;
const ROUNDS: usize = 201;
const ELEMENTS: usize = 2;

disco::register_function!("benches.nccl", run);
disco::register_function!("benches.nccl.compare", compare);

/// Seconds of so many all_reduces, until they are launched.
fn run(ctx: &mut WorkerContext, iters: usize) -> Result<f64> {
    let (group, mut seconds) = (group(ctx)?, 0.0);
    for _ in 0..iters.div_ceil(CALLS) {
        seconds += block(ctx, &group)?;
    }
    Ok(seconds * iters as f64 / (iters.div_ceil(CALLS) * CALLS) as f64)
}

/// Nanoseconds that a call takes: ours, and the library's with its communicator of one rank; and the median of what is added.
fn compare(ctx: &mut WorkerContext) -> Result<Vec<u8>> {
    let group = group(ctx)?;
    let [Op::AllReduce { src: Some(src), dst, .. }] = &group else {
        return Err(Error::Invalid("one all_reduce".into()));
    };
    let library = disco::nccl::BACKEND.library()?;
    let (table, stream) = (&library.table, ctx.queue().raw());
    let (mut comm, mut config): (Comm, _) = (std::ptr::null_mut(), Config::non_blocking());
    let init = table.comm_init_rank_config.ok_or_else(|| Error::Invalid("an old library".into()))?;
    // SAFETY: all of them are there.
    let mut code = unsafe { init(&mut comm, 1, library.unique_id()?, 0, &mut config) };
    while code == Code::IN_PROGRESS {
        // SAFETY: as above.
        unsafe { (table.comm_get_async_error)(comm, &mut code) };
    }
    library.check("ncclCommInitRankConfig", code)?;
    let float = DataType::of(DType::F32).unwrap_or(DataType::U8);
    let sum = RedOp::of(Reduction::Sum, DType::F32).unwrap_or(RedOp::MAX);
    let mut times = [const { Vec::new() }; 2];
    for round in 0..ROUNDS {
        for turn in [round % 2, 1 - round % 2] {
            let seconds = match turn {
                0 => block(ctx, &group)?,
                _ => {
                    let (from, to) = (src.data().cast_const().cast(), dst.data().cast());
                    let start = Instant::now();
                    for _ in 0..CALLS {
                        // SAFETY: the communicator is there; both tensors have so many elements.
                        let mut code = unsafe { (table.all_reduce)(from, to, ELEMENTS, float, sum, comm, stream) };
                        while code == Code::IN_PROGRESS {
                            // SAFETY: the communicator is there, and so is the place.
                            _ = unsafe { (table.comm_get_async_error)(comm, &mut code) };
                        }
                        if code != Code::SUCCESS {
                            library.check("ncclAllReduce", code)?;
                        }
                    }
                    let seconds = start.elapsed().as_secs_f64();
                    let deadline = ctx.deadline();
                    ctx.queue().synchronize(deadline)?;
                    seconds
                }
            };
            times[turn].push(seconds * 1e9 / CALLS as f64);
        }
    }
    // SAFETY: nothing is under way. It may go on in the background.
    _ = unsafe { (table.comm_destroy)(comm) };
    let median = |mut values: Vec<f64>| {
        values.sort_unstable_by(f64::total_cmp);
        values[values.len() / 2]
    };
    let added = median(times[0].iter().zip(&times[1]).map(|(ours, raw)| ours - raw).collect());
    let [ours, raw] = times.map(median);
    Ok(format!("ours {ours:.0} ns   raw {raw:.0} ns ({added:+.0} ns)").into_bytes())
}

fn group(ctx: &mut WorkerContext) -> Result<[Op; 1]> {
    let mut tensor = || ctx.empty(DType::F32, [ELEMENTS as i64]);
    Ok([Op::AllReduce { src: Some(tensor()?), dst: tensor()?, reduction: Reduction::Sum }])
}

fn block(ctx: &mut WorkerContext, group: &[Op]) -> Result<f64> {
    let comm = ctx.comm()?;
    let start = Instant::now();
    (0..CALLS).try_for_each(|_| comm.enqueue(group))?;
    let seconds = start.elapsed().as_secs_f64();
    comm.synchronize()?;
    Ok(seconds)
}

fn nccl(criterion: &mut Criterion) {
    let session = Builder::threads(1).start().expect("a worker can be started");
    block_on(session.init_ccl("nccl", &[])).expect("it was probed");
    let mut group = criterion.benchmark_group("launch/nccl 1");
    group.bench_function(BenchmarkId::from_parameter(ELEMENTS * 4), |bencher| {
        bencher.iter_custom(|iters| -> Duration { common::slowest(&session, "benches.nccl", (iters as i64,)) });
    });
    group.finish();
    if common::is_asked_for("launch/nccl 1") {
        use disco::SessionExt as _;
        let text = block_on(async {
            let function = session.function("benches.nccl.compare").await?;
            let answer = session.call(&function, ()).await?;
            session.get_as::<Vec<u8>>(&answer, 0.into()).await
        });
        let probe = disco::nccl::BACKEND.probe().expect("it was probed");
        let text = String::from_utf8(text.expect("it is there")).expect("text");
        println!(
            "all_reduce of {} bytes, launch alone, {} from {}: {text}",
            ELEMENTS * 4,
            probe.version,
            probe.library
        );
    }
    block_on(session.shutdown()).expect("live");
}

criterion_group!(benches, nccl);

fn main() {
    if disco::nccl::BACKEND.probe().is_ok() {
        return common::run(benches);
    }
    let variable = "LD_LIBRARY_PATH";
    let folder = disco_gpu_double::folder();
    if env::var_os(variable).is_some_and(|path| path == folder.as_os_str()) {
        eprintln!("nccl: skipped: {:?}", disco::nccl::BACKEND.probe());
        return;
    }
    let mut this = Command::new(env::current_exe().expect("it runs"));
    // Its streams are busy, so that calls neither wake them nor meet them.
    this.args(env::args_os().skip(1)).env(variable, folder).env("GPU_DOUBLE_DELAY_US", "20");
    let status = this.status();
    if !status.expect("it runs").success() {
        process::exit(1);
    }
}
