//! Jobs that part 5 of the GPU evidence kit runs beside the same jobs of other systems: `cores JOB KIND RANKS NUMBER`. Each prints
//! one JSON object.
//!
//! - `barriers`: the time of a barrier, of NUMBER in a row, in µs.
//! - `started`: the share of an `all_reduce` of NUMBER bytes that is hidden beside a step of equal length, which sleeps or computes:
//!   (`all_reduce` + step - both) / `all_reduce`. 1: all of it is hidden; 0: none is.
//! - `bound`: the time of an `all_reduce` of 8 bytes and of 1 MiB, of NUMBER in a row, in µs: with ranks that may use all processors,
//!   and with the i-th rank bound to the i-th of them.

#![allow(clippy::expect_used, reason = "a job that fails ends")]

use std::env;
use std::hint::black_box;
use std::thread;
use std::time::{Duration, Instant};

use disco::{
    Builder, Communicator, CommunicatorExt as _, DType, Error, LaneSession, Op, Reduction, Result, SessionKind, Shape,
    Tensor, WorkerContext, WorkerId, block_on,
};
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

/// Time of a measurement of [`started`], and its fewest and most rounds, in which the variants take turns.
const SECONDS: f64 = 0.8;
const ROUNDS: (usize, usize) = (5, 51);
/// Rounds of a comparison of [`bound`].
const BOUND_ROUNDS: usize = 5;
const BOUND_BYTES: [usize; 2] = [8, 1 << 20];

disco::register_function!("cores.barriers", barriers);
disco::register_function!("cores.started", started);
disco::register_function!("cores.bind", bind);
disco::register_function!("cores.all_reduces", all_reduces);

/// Seconds of a barrier.
fn barriers(ctx: &mut WorkerContext, count: usize) -> Result<f64> {
    let comm = ctx.comm()?;
    mean(comm, count, |comm| comm.enqueue(&[Op::Barrier]))
}

/// Seconds of an `all_reduce`.
fn all_reduces(ctx: &mut WorkerContext, bytes: usize, count: usize) -> Result<f64> {
    let (dst, sum) = sum_of_ones(ctx, bytes)?;
    let comm = ctx.comm()?;
    let seconds = mean(comm, count, |comm| comm.enqueue(&sum))?;
    check(&dst, comm.size()).map(|()| seconds)
}

/// Restricts this worker's thread to its own one of `processors`, or to all of them.
fn bind(ctx: &mut WorkerContext, processors: Shape, own: bool) -> Result<()> {
    let rank = ctx.worker().index();
    let mut set = CpuSet::new();
    processors
        .iter()
        .skip(rank * usize::from(own))
        .take(if own { 1 } else { usize::MAX })
        .for_each(|it| set.set(*it as usize));
    sched_setaffinity(None, &set).map_err(|error| Error::invalid(format!("rank {rank} can't be bound: {error}")))
}

/// The destination and the operation of an `all_reduce` of ones.
fn sum_of_ones(ctx: &mut WorkerContext, bytes: usize) -> Result<(Tensor, [Op; 1])> {
    let mut tensor = || ctx.empty(DType::F32, [(bytes / 4) as i64]);
    let (src, dst) = (tensor()?, tensor()?);
    src.view_mut::<f32>()?.fill(1.0);
    Ok((dst.clone(), [Op::AllReduce { src: Some(src), dst, reduction: Reduction::Sum }]))
}

fn check(dst: &Tensor, ranks: usize) -> Result<()> {
    let is_right = dst.view::<f32>()?.iter().all(|element| *element == ranks as f32);
    if is_right { Ok(()) } else { Err(Error::invalid("all_reduce: the result is wrong")) }
}

/// Seconds of one of `count` operations in a row, after as many tenths of them.
fn mean(
    comm: &mut dyn Communicator,
    count: usize,
    mut once: impl FnMut(&mut dyn Communicator) -> Result<()>,
) -> Result<f64> {
    (0..1 + count / 10).try_for_each(|_| once(comm))?;
    timed(comm, |comm| (0..count).try_for_each(|_| once(comm))).map(|seconds| seconds / count as f64)
}

/// Seconds from the time when all ranks begin until all have ended.
fn timed(comm: &mut dyn Communicator, work: impl FnOnce(&mut dyn Communicator) -> Result<()>) -> Result<f64> {
    comm.enqueue(&[Op::Barrier])?;
    let start = Instant::now();
    work(comm)?;
    comm.enqueue(&[Op::Barrier])?;
    Ok(start.elapsed().as_secs_f64())
}

fn compute(steps: u64) -> Result<()> {
    let mut value = 1.0f32;
    for _ in 0..steps {
        value = black_box(value * 1.0001);
    }
    Ok(())
}

fn sleep(seconds: f64) -> Result<()> {
    thread::sleep(Duration::from_secs_f64(seconds));
    Ok(())
}

/// Returns the seconds of an `all_reduce`, and its hidden shares beside a step that sleeps and one that computes.
fn started(ctx: &mut WorkerContext, bytes: usize) -> Result<Vec<f64>> {
    const STEPS: u64 = 1_000_000;
    let (dst, sum) = sum_of_ones(ctx, bytes)?;
    // In which ranks agree on the length of steps.
    let time = ctx.empty(DType::F64, [2])?;
    let comm = ctx.comm()?;
    let mut alone = (0..5).map(|_| timed(comm, |comm| comm.enqueue(&sum))).collect::<Result<Vec<_>>>()?;
    let step = [median(&mut alone), timed(comm, |_| compute(STEPS))?];
    time.view_mut::<f64>()?.copy_from_slice(&step);
    comm.all_reduce_in_place(&time, Reduction::Max)?;
    let [step, million] = time.to_vec::<f64>()?[..] else { return Err(Error::invalid("two times are reduced")) };
    let steps = (step / million * STEPS as f64) as u64;
    let rounds = ((SECONDS / (7.0 * step)) as usize).clamp(ROUNDS.0, ROUNDS.1);
    let variants: [&dyn Fn() -> Result<()>; 2] = [&|| sleep(step), &|| compute(steps)];
    let mut times = [const { Vec::new() }; 5];
    for _ in 0..rounds {
        times[0].push(timed(comm, |comm| comm.enqueue(&sum))?);
        for (index, step) in variants.into_iter().enumerate() {
            times[1 + index].push(timed(comm, |_| step())?);
            let beside = timed(comm, |comm| {
                let work = comm.start(&sum)?;
                step()?;
                work.wait()
            })?;
            times[3 + index].push(beside);
        }
    }
    check(&dst, comm.size())?;
    let [alone, asleep, computing, beside_asleep, beside_computing] = times.each_mut().map(|times| median(times));
    Ok(vec![alone, (alone + asleep - beside_asleep) / alone, (alone + computing - beside_computing) / alone])
}

fn median(times: &mut [f64]) -> f64 {
    times.sort_unstable_by(f64::total_cmp);
    times[times.len() / 2]
}

async fn run(session: &LaneSession, job: &str, number: i64) -> Result<()> {
    session.init_ccl("local", &[]).await?;
    let first = WorkerId::new(0);
    match job {
        "barriers" => {
            let seconds = session.call("cores.barriers", (number,)).await?;
            println!("{{\"us\": {:.3}}}", 1e6 * session.get::<f64>(&seconds, first).await?);
        }
        "started" => {
            let result = session.call("cores.started", (number,)).await?;
            let figures: Vec<f64> = session.get(&result, first).await?;
            let [alone, asleep, computing] = figures[..] else { return Err(Error::invalid("there are three figures")) };
            println!("{{\"us\": {:.1}, \"asleep\": {asleep:.3}, \"computing\": {computing:.3}}}", alone * 1e6);
        }
        "bound" => {
            let allowed = sched_getaffinity(None).expect("Linux has it");
            let allowed = (0..CpuSet::MAX_CPU).filter(|processor| allowed.is_set(*processor)).map(|it| it as i64);
            let processors = Shape::from(allowed.collect::<Vec<_>>());
            let bind = session.function("cores.bind").await?;
            let sum = session.function("cores.all_reduces").await?;
            let mut rows = Vec::new();
            for bytes in BOUND_BYTES {
                let mut times = [const { Vec::new() }; 2];
                for round in 0..2 * BOUND_ROUNDS {
                    session.call(&bind, (processors.clone(), round % 2 == 1)).await?;
                    let seconds = session.call(&sum, (bytes as i64, number)).await?;
                    times[round % 2].push(1e6 * session.get::<f64>(&seconds, first).await?);
                }
                let [free, bound] = times.each_mut().map(|times| median(times));
                rows.push(format!("{{\"bytes\": {bytes}, \"free_us\": {free:.3}, \"bound_us\": {bound:.3}}}"));
            }
            println!("{{\"rows\": [{}]}}", rows.join(", "));
        }
        other => return Err(Error::invalid(format!("there is no job `{other}`"))),
    }
    session.sync_all().await
}

fn main() {
    disco::init();
    let args: Vec<String> = env::args().skip(1).collect();
    let [job, kind, ranks, number] = &args[..] else {
        eprintln!("usage: cores barriers|started|bound threads|processes RANKS NUMBER");
        std::process::exit(2);
    };
    let kind: SessionKind = kind.parse().expect("a kind of session");
    let (ranks, number) = (ranks.parse().expect("a number"), number.parse().expect("a number"));
    let session = Builder::new(kind, ranks).start().expect("workers can be started");
    block_on(run(&session, job, number)).expect("ranks live");
    block_on(session.shutdown()).expect("ranks live");
}
