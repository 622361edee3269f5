//! The time that the backend `mpi` adds to MPI's own calls, and the time of the backend `local`.
//!
//! Runs once for each MPI library that the tests have fetched, or with the library that is found.

#![allow(unsafe_code, reason = "MPI's own calls")]

use std::env;
use std::process::{self, Command};
use std::time::{Duration, Instant};

use crate::common;
use criterion::{BenchmarkId, Criterion, Throughput, criterion_group};
use disco::mpi::raw::{self, Call};
use disco::{Backend as _, Builder, DType, Error, Op, Rank, Reduction, Result, Session, WorkerContext, block_on};

/// Sizes of a tensor, in bytes.
const SIZES: [usize; 8] = [8, 1 << 10, 16 << 10, 64 << 10, 256 << 10, 1 << 20, 16 << 20, 64 << 20];
const OPERATIONS: [&str; 4] = ["all_reduce", "broadcast", "all_to_all", "ping_pong"];
/// Duration of one round of a comparison, in seconds. Short, so that all variants see similar conditions.
const ROUND_SECONDS: f64 = 2e-3;
/// Duration of one comparison, in seconds.
const TOTAL_SECONDS: f64 = 2.0;
/// Minimum number of rounds of a comparison.
const ROUNDS: usize = 21;
/// Variants of a measurement: the backend, MPI's non-blocking calls with polling, and MPI's blocking calls.
const OURS: usize = 0;
const POLLED: usize = 1;
const BLOCKING: usize = 2;

disco::register_function!("benches.mpi", run);

/// Returns the seconds of `iters` operations by the variant `who`. The root of broadcasts changes each time, so that no
/// rank runs ahead. A ping-pong runs between ranks 0 and 1.
fn run(ctx: &mut WorkerContext, name: String, who: usize, bytes: usize, iters: usize) -> Result<f64> {
    let mut tensor = || ctx.empty(DType::F32, [(bytes / 4) as i64]);
    let (src, dst) = (tensor()?, tensor()?);
    src.view_mut::<f32>()?.fill(1.0);
    dst.view_mut::<f32>()?.fill(1.0);
    let comm = ctx.comm()?;
    let (me, size) = (comm.rank().index(), comm.size());
    let peer = 1usize.wrapping_sub(me);
    let rank = |index: usize| Rank::new(index as u32);
    let group = |turn: usize| match name.as_str() {
        "all_reduce" => [Op::AllReduce { src: Some(src.clone()), dst: dst.clone(), reduction: Reduction::Sum }],
        "broadcast" => [Op::Broadcast { src: None, dst: dst.clone(), root: rank(turn) }],
        "all_to_all" => [Op::AllToAll { src: Some(src.clone()), dst: dst.clone() }],
        _ if turn % 2 == me => [Op::Send { src: src.clone(), to: rank(peer) }],
        _ => [Op::Recv { dst: dst.clone(), from: rank(peer) }],
    };
    let raw = |turn: usize| match name.as_str() {
        "all_reduce" => Call::AllReduce,
        "broadcast" => Call::Broadcast(turn),
        "all_to_all" => Call::AllToAll(size),
        _ if turn % 2 == me => Call::Send(peer),
        _ => Call::Recv(peer),
    };
    let groups: Vec<[Op; 1]> = (0..size).map(group).collect();
    let mut once = |turn: usize| match who {
        OURS => comm.enqueue(&groups[turn % size]),
        // SAFETY: the session has initialised MPI, and both tensors have `bytes` bytes.
        who => unsafe { raw::call(raw(turn % size), who == BLOCKING, src.data(), dst.data(), bytes) },
    };
    if name == "ping_pong" && me > 1 {
        return Ok(0.0);
    }
    (0..4).try_for_each(&mut once)?;
    let start = Instant::now();
    (0..iters).try_for_each(&mut once)?;
    let seconds = start.elapsed().as_secs_f64();
    let value = if name == "all_reduce" { size as f32 } else { 1.0 };
    let is_right = dst.view::<f32>()?.iter().all(|element| *element == value);
    if is_right { Ok(seconds) } else { Err(Error::invalid(format!("{name}: the result is wrong"))) }
}

/// The time of `iters` operations on the slowest rank.
fn time(session: &dyn Session, name: &str, who: usize, bytes: usize, iters: usize) -> Duration {
    common::slowest(session, "benches.mpi", (name, who as i64, bytes as i64, iters as i64))
}

fn mpi(criterion: &mut Criterion) {
    let ranks = common::settings(2).workers;
    let [mpi, local] = ["mpi", "local"].map(|backend| {
        let session = Builder::processes(ranks).start().expect("workers can be started");
        if let Err(error) = block_on(session.init_ccl(backend, &[])) {
            eprintln!("mpi: {error}");
            process::exit(1);
        }
        session
    });
    let library = disco::mpi::BACKEND.probe().expect("it is there: a session has it");
    let blocking = if env::var("DISCO_MPI_BLOCKING").is_ok_and(|value| value == "1") { "blocking" } else { "polled" };
    println!("\n{} from {}, {ranks} ranks, {blocking}", library.version, library.library);
    common::print_placement();
    // Without measuring, only small sizes, so that the run is short.
    let sizes = if common::measures() { &SIZES[..] } else { &SIZES[..2] };
    for name in OPERATIONS {
        let mut group = criterion.benchmark_group(format!("{name}/mpi {ranks}"));
        for &bytes in sizes.iter().step_by(2) {
            group.throughput(Throughput::Bytes(bytes as u64));
            group.bench_function(BenchmarkId::from_parameter(bytes), |bencher| {
                bencher.iter_custom(|iters| time(&mpi, name, OURS, bytes, iters as usize));
            });
        }
        group.finish();
    }
    for name in OPERATIONS {
        compare(&mpi, &local, name, ranks);
        common::print_placement();
    }
    for session in [mpi, local] {
        block_on(session.shutdown()).expect("live");
    }
}

/// Prints our times beside those of the library's own calls and of `local`.
fn compare(mpi: &dyn Session, local: &dyn Session, name: &str, ranks: usize) {
    for bytes in SIZES {
        if !common::is_selected(&format!("{name}/mpi {ranks}/{bytes}")) {
            continue;
        }
        let seconds = 1e-6 + bytes as f64 / 2e9;
        let iters = (ROUND_SECONDS / seconds).max(3.0) as usize;
        let rounds = ((TOTAL_SECONDS / 4.0 / (seconds * iters as f64)) as usize).max(ROUNDS);
        let mut times = [const { Vec::new() }; 4];
        let who = [(mpi, OURS), (mpi, POLLED), (mpi, BLOCKING), (local, OURS)];
        for round in 0..rounds {
            // The order alternates, so that no variant always follows the same one.
            for turn in 0..who.len() {
                let index = if round % 2 == 0 { turn } else { who.len() - 1 - turn };
                let (session, who) = who[index];
                times[index].push(time(session, name, who, bytes, iters).as_secs_f64() / iters as f64);
            }
        }
        let [ours, polled, blocking, local] = times.each_ref().map(|times| median(times.iter().copied()) * 1e6);
        // The difference is taken per round, so that drift over the rounds cancels out.
        let over = |raw: usize| {
            let added = median(times[OURS].iter().zip(&times[raw]).map(|(ours, raw)| ours - raw));
            format!("{:+.0} ns, {:+.1} %", added * 1e9, added / median(times[raw].iter().copied()) * 100.0)
        };
        println!(
            "{:<24} ours {ours:.2} µs   raw polled {polled:.2} ({})   raw blocking {blocking:.2} ({})   \
             polled / blocking {:.2}   local {local:.2}, {:.2} of raw blocking",
            format!("{name}/{bytes}"),
            over(POLLED),
            over(BLOCKING),
            polled / blocking,
            local / blocking
        );
    }
}

/// The median.
fn median(values: impl Iterator<Item = f64>) -> f64 {
    let mut values: Vec<f64> = values.collect();
    values.sort_unstable_by(f64::total_cmp);
    values[values.len() / 2]
}

criterion_group!(benches, mpi);

pub(crate) fn main() {
    let libraries = if env::var_os("DISCO_MPI_LIBRARY").is_some() { Vec::new() } else { common::libraries::fetched() };
    if libraries.is_empty() {
        match disco::mpi::BACKEND.probe() {
            Ok(_) => common::run(benches),
            Err(error) => eprintln!("mpi: skipped: {error}"),
        }
        return;
    }
    let ranks = common::settings(2).workers;
    for library in libraries {
        let mut this = Command::new(env::current_exe().expect("it runs"));
        this.args(env::args_os().skip(1)).env("DISCO_MPI_LIBRARY", library).env("DISCO_BACKEND", "mpi");
        let status = this.env("DISCO_WORKERS", ranks.to_string()).status().expect("it runs");
        if !status.success() {
            process::exit(1);
        }
    }
}
