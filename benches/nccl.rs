//! The time that the backend `nccl` adds to NCCL's own calls, and `cuda_p2p` to a kernel launch.
//!
//! Runs with the real libraries on a machine with a GPU, else with the test double, which shows the host's cost of a
//! call and nothing about GPUs. One and two ranks suffice, because only the host's part is measured.

#![allow(missing_docs, clippy::expect_used, reason = "criterion's macros; a benchmark that fails ends")]
#![allow(unsafe_code, reason = "NCCL's own calls")]

#[path = "common/mod.rs"]
mod common;

use std::env;
use std::process::{self, Command};
use std::time::{Duration, Instant};

use criterion::{BenchmarkId, Criterion, criterion_group};
use disco::nccl::cudarc::driver::{DriverError, result, sys};
use disco::nccl::disco_ccl::abi::{Code, Comm, DataType, RedOp, UniqueId};
use disco::nccl::{self, p2p::kernels};
use disco::{
    Backend as _, Builder, DType, Error, IntoArgs, LaneSession, Op, Reduction, Result, Tensor, WorkerContext, block_on,
};

/// Number of calls in a row that a stream accepts without blocking.
const CALLS: usize = 200;
const ROUNDS: usize = 201;
const ELEMENTS: usize = 2;

disco::register_function!("benches.nccl", run);
disco::register_function!("benches.nccl.compare", compare);
disco::register_function!("benches.nccl.compare_launches", compare_launches);

/// Returns the seconds that launching `iters` all-reduces takes.
fn run(ctx: &mut WorkerContext, iters: usize) -> Result<f64> {
    let (group, mut seconds) = (group(ctx)?, 0.0);
    for _ in 0..iters.div_ceil(CALLS) {
        seconds += block(ctx, &group)?;
    }
    Ok(seconds * iters as f64 / (iters.div_ceil(CALLS) * CALLS) as f64)
}

/// Compares our calls with the library's own calls, with a blocking communicator of the same number of ranks, made from
/// the unique id `id`. Returns the medians in nanoseconds, and the median of the difference.
fn compare(ctx: &mut WorkerContext, id: Vec<u8>) -> Result<Vec<u8>> {
    let group = group(ctx)?;
    let [Op::AllReduce { src: Some(src), dst, .. }] = &group else {
        return Err(Error::Invalid("one all_reduce".into()));
    };
    let library = disco::nccl::BACKEND.library()?;
    let (table, stream) = (&library.table, ctx.queue().raw());
    let id = UniqueId(id.try_into().map_err(|_| Error::Invalid("that is no place to meet".into()))?);
    let (ranks, rank) = (ctx.comm()?.size() as i32, ctx.comm()?.rank().index() as i32);
    let mut comm: Comm = std::ptr::null_mut();
    // SAFETY: `comm` is a valid place for the handle.
    library.check("ncclCommInitRank", unsafe { (table.comm_init_rank)(&mut comm, ranks, id, rank) })?;
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
                        // SAFETY: the communicator is alive, and both tensors have `ELEMENTS` elements.
                        let code = unsafe { (table.all_reduce)(from, to, ELEMENTS, float, sum, comm, stream) };
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
    // SAFETY: the stream was synchronized, so no operation is in flight.
    _ = unsafe { (table.comm_destroy)(comm) };
    Ok(verdict(times).into_bytes())
}

/// The medians of our and the raw call, and the median of the difference.
fn verdict(times: [Vec<f64>; 2]) -> String {
    let median = |mut values: Vec<f64>| {
        values.sort_unstable_by(f64::total_cmp);
        values[values.len() / 2]
    };
    let added = median(times[0].iter().zip(&times[1]).map(|(ours, raw)| ours - raw).collect());
    let [ours, raw] = times.map(median);
    format!("ours {ours:.0} ns   raw {raw:.0} ns ({added:+.0} ns)")
}

/// Compares our sum by a kernel with the driver's launch of the same kernel on the same stream, without peers.
fn compare_launches(ctx: &mut WorkerContext) -> Result<Vec<u8>> {
    if let Some(why) = nccl::extension(ctx.comm()?)?.p2p_fast_path()?.fallback_reason() {
        return Ok(format!("skipped: {why}").into_bytes());
    }
    let mut tensor = |dtype, len| ctx.empty(dtype, [len]);
    let (dst, state, data) =
        (tensor(DType::F32, 4)?, tensor(DType::U8, kernels::STATE_BYTES as i64)?, tensor(DType::F32, 4)?);
    let group = [Op::AllReduce { src: None, dst: dst.clone(), reduction: Reduction::Sum }];
    let stream = disco::nccl::cuda::stream(ctx.queue())?;
    let (major, minor) = stream.context().compute_capability().map_err(refused)?;
    let cubin = kernels::cubin(kernels::Architecture::new(major.unsigned_abs(), minor.unsigned_abs()))?;
    let name = kernels::name(kernels::Algorithm::OneShot, DType::F32).unwrap_or(kernels::BARRIER);
    let (mut module, mut function) = (std::ptr::null_mut(), std::ptr::null_mut());
    // SAFETY: the image is complete, and `module` is a valid place for the handle.
    unsafe { sys::cuModuleLoadData(&mut module, cubin.as_ptr().cast()).result() }.map_err(refused)?;
    // SAFETY: the module is loaded, the name ends with a zero, and `function` is a valid place for the handle.
    unsafe { sys::cuModuleGetFunction(&mut function, module, name.as_ptr()).result() }.map_err(refused)?;
    // SAFETY: the memory is written below before it is read.
    let words = unsafe { result::malloc_host(8, 0) }.map_err(refused)?.cast::<[u32; 2]>();
    // SAFETY: the allocation has 8 bytes.
    unsafe { words.write([0; 2]) };
    let at = |tensor: &Tensor| tensor.data() as usize as u64;
    let params = kernels::Params {
        data: [at(&data); kernels::MAX_WORLD],
        state: [at(&state); kernels::MAX_WORLD],
        input: at(&dst),
        output: at(&dst),
        abort: words as usize as u64,
        report: words as usize as u64 + 4,
        timeout_ns: 1_000_000_000,
        count: 1,
        world: 1,
        ..kernels::Params::default()
    };
    let mut times = [const { Vec::new() }; 2];
    for _ in 0..ROUNDS {
        // All ranks run these in the same order, because they synchronize with each other.
        times[0].push(block(ctx, &group)? * 1e9 / CALLS as f64);
        let start = Instant::now();
        for _ in 0..CALLS {
            let mut arguments = [std::ptr::from_ref(&params).cast_mut().cast()];
            // SAFETY: the kernel has one parameter of this type, and the memory that it points to outlives the launch.
            let launched = unsafe {
                let (arguments, none) = (arguments.as_mut_ptr(), std::ptr::null_mut());
                sys::cuLaunchKernel(function, 1, 1, 1, 32, 1, 1, 0, stream.cu_stream(), arguments, none)
            };
            launched.result().map_err(refused)?;
        }
        times[1].push(start.elapsed().as_secs_f64() * 1e9 / CALLS as f64);
        let deadline = ctx.deadline();
        ctx.queue().synchronize(deadline)?;
    }
    // SAFETY: the stream was synchronized, so no operation is in flight.
    unsafe { sys::cuModuleUnload(module).result() }.map_err(refused)?;
    // SAFETY: the stream was synchronized, so no kernel uses the memory.
    unsafe { result::free_host(words.cast()) }.map_err(refused)?;
    Ok(verdict(times).into_bytes())
}

fn refused(error: DriverError) -> Error {
    Error::Invalid(format!("the driver: {error}"))
}

fn group(ctx: &mut WorkerContext) -> Result<[Op; 1]> {
    let mut tensor = || ctx.empty(DType::F32, [ELEMENTS as i64]);
    Ok([Op::AllReduce { src: Some(tensor()?), dst: tensor()?, reduction: Reduction::Sum }])
}

fn block(ctx: &mut WorkerContext, ops: &[Op]) -> Result<f64> {
    let comm = ctx.comm()?;
    let start = Instant::now();
    (0..CALLS).try_for_each(|_| comm.enqueue(ops))?;
    let seconds = start.elapsed().as_secs_f64();
    comm.synchronize()?;
    Ok(seconds)
}

/// Device 0 for all ranks if `DISCO_SHARE_DEVICES=1`, otherwise a device for each.
fn devices(ranks: usize) -> Vec<i32> {
    let is_shared = env::var_os("DISCO_SHARE_DEVICES").is_some_and(|value| value == "1");
    if is_shared { vec![0; ranks] } else { Vec::new() }
}

/// With one rank, NCCL launches no kernel, and starts no thread for non-blocking communicators.
fn nccl(criterion: &mut Criterion) {
    for ranks in [1, 2] {
        let session = Builder::threads(ranks).start().expect("workers can be started");
        if let Err(error) = block_on(session.init_ccl("nccl", &devices(ranks))) {
            println!("launch/nccl {ranks}: skipped: {error}");
            continue;
        }
        let name = format!("launch/nccl {ranks}");
        let mut group = criterion.benchmark_group(&name);
        group.bench_function(BenchmarkId::from_parameter(ELEMENTS * 4), |bencher| {
            bencher.iter_custom(|iters| -> Duration { common::slowest(&session, "benches.nccl", (iters as i64,)) });
        });
        group.finish();
        if common::is_selected(&name) {
            let probe = disco::nccl::BACKEND.probe().expect("it was probed");
            let library = disco::nccl::BACKEND.library().expect("it was probed");
            let id = library.unique_id().expect("it finds a network");
            let text = answer(&session, "benches.nccl.compare", (id.0.to_vec(),));
            println!(
                "all_reduce of {} bytes, {ranks} ranks, launch alone, {} from {}, beside blocking launches: {text}",
                ELEMENTS * 4,
                probe.version,
                probe.library
            );
        }
        block_on(session.shutdown()).expect("live");
    }
}

fn launches(_: &mut Criterion) {
    if !common::is_selected("launch/cuda_p2p 2") {
        return;
    }
    let session = Builder::threads(2).start().expect("workers can be started");
    let text = match block_on(session.init_ccl("cuda_p2p", &devices(2))) {
        Ok(()) => answer(&session, "benches.nccl.compare_launches", ()),
        Err(error) => format!("skipped: {error}"),
    };
    println!("all_reduce of 16 bytes by a kernel, launch alone: {text}");
    block_on(session.shutdown()).expect("live");
}

/// The text that a worker function returns on worker 0.
fn answer(session: &LaneSession, name: &str, args: impl IntoArgs) -> String {
    let text = block_on(async {
        let answer = session.call(name, args).await?;
        session.get::<Vec<u8>>(&answer, 0.into()).await
    });
    String::from_utf8(text.expect("it is there")).expect("text")
}

criterion_group!(benches, nccl, launches);

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
    // The delay keeps the double's streams busy, so that calls need not wake their threads.
    this.args(env::args_os().skip(1)).env(variable, folder).env("GPU_DOUBLE_DELAY_US", "20");
    this.env("DISCO_P2P_TOPOLOGY", "fully_connected");
    let status = this.status();
    if !status.expect("it runs").success() {
        process::exit(1);
    }
}
