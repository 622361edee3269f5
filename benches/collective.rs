//! How long does a collective take, compared with a lower bound?

use std::rc::Rc;
use std::time::{Duration, Instant};

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group};
use disco::{
    CommunicatorExt as _, DRef, DType, Error, Op, OpKind, Opaque, Rank, Reduction, Result, Session, SessionKind,
    Tensor, Value, WorkerContext, block_on,
};

use crate::common;
use crate::common::floor::{Floor, WARM_UP};

/// Sizes in bytes of the larger of source and destination.
const SIZES: [usize; 6] = [8, 4 << 10, 64 << 10, 1 << 20, 16 << 20, 64 << 20];
const KINDS: [OpKind; 8] = [
    OpKind::AllReduce,
    OpKind::AllGather,
    OpKind::Broadcast,
    OpKind::ReduceScatter,
    OpKind::AllToAll,
    OpKind::Reduce,
    OpKind::Gather,
    OpKind::Scatter,
];
/// Duration of one round of a comparison, in seconds.
const ROUND_SECONDS: f64 = 0.006;
const ROOT: Rank = Rank::new(0);

/// One rank's part in a collective, prepared once.
struct Job {
    group: [Op; 1],
    /// The destination and its expected elements after one run; `None` if the rank gets no result.
    result: Option<(Tensor, Expected)>,
}

/// The elements of a result, by index.
type Expected = Box<dyn Fn(usize) -> f32>;

disco::register_function!("benches.prepare", prepare);
disco::register_function!("benches.verify", verify);
disco::register_function!("benches.run", run);
disco::register_function!("benches.tensors", tensors);

/// Element `index` of the input of rank `rank`.
fn element(rank: usize, index: usize) -> f32 {
    ((rank + 1) * (index % 7 + 1)) as f32
}

/// Prepares a collective whose larger side has `count` elements on each rank.
fn prepare(ctx: &mut WorkerContext, name: String, count: usize, in_place: bool) -> Result<Opaque> {
    let kind = OpKind::ALL.into_iter().find(|kind| kind.name() == name).ok_or_else(|| Error::invalid(name))?;
    let comm = ctx.comm()?;
    let (me, size) = (comm.rank().index(), comm.size());
    let (block, reduction) = (count / size, Reduction::Sum);
    let sum = move |index| (0..size).map(|rank| element(rank, index)).sum::<f32>();
    let mut tensor = |len: usize, value: Option<usize>| -> Result<Tensor> {
        let host = Tensor::zeros(DType::F32, [len as i64])?;
        let fill = |(index, to): (usize, &mut f32)| *to = value.map_or(0.0, |rank| element(rank, index));
        host.view_mut::<f32>()?.iter_mut().enumerate().for_each(fill);
        let tensor = ctx.empty(DType::F32, [len as i64])?;
        ctx.queue().copy_in(&tensor, &host)?;
        Ok(tensor)
    };
    let root = ROOT;
    let at_root = me == root.index();
    let expected: Expected = match kind {
        OpKind::AllReduce | OpKind::Reduce => Box::new(sum),
        OpKind::ReduceScatter => Box::new(move |index| sum(me * block + index)),
        OpKind::AllGather | OpKind::Gather => Box::new(move |index| element(index / block, index % block)),
        OpKind::AllToAll => Box::new(move |index| element(index / block, me * block + index % block)),
        OpKind::Scatter => Box::new(move |index| element(0, me * block + index)),
        _ => Box::new(|index| element(0, index)),
    };
    let op = match kind {
        OpKind::AllReduce if in_place => Op::AllReduce { src: None, dst: tensor(count, Some(me))?, reduction },
        OpKind::AllReduce => {
            Op::AllReduce { src: Some(tensor(count, Some(me))?), dst: tensor(count, None)?, reduction }
        }
        OpKind::Reduce => {
            let dst = at_root.then(|| tensor(count, None)).transpose()?;
            Op::Reduce { src: Some(tensor(count, Some(me))?), dst, reduction, root }
        }
        OpKind::ReduceScatter => {
            Op::ReduceScatter { src: Some(tensor(count, Some(me))?), dst: tensor(block, None)?, reduction }
        }
        OpKind::AllGather => Op::AllGather { src: Some(tensor(block, Some(me))?), dst: tensor(block * size, None)? },
        OpKind::Broadcast => Op::Broadcast { src: None, dst: tensor(count, at_root.then_some(me))?, root },
        OpKind::Gather => {
            let dst = at_root.then(|| tensor(block * size, None)).transpose()?;
            Op::Gather { src: Some(tensor(block, Some(me))?), dst, root }
        }
        OpKind::Scatter => {
            let src = at_root.then(|| tensor(block * size, Some(me))).transpose()?;
            Op::Scatter { src, dst: Some(tensor(block, None)?), root }
        }
        _ => Op::AllToAll { src: Some(tensor(block * size, Some(me))?), dst: tensor(block * size, None)? },
    };
    let result = op.dst().cloned().map(|dst| (dst, expected));
    Ok(Opaque::new(Job { group: [op], result }))
}

/// Runs it once and looks at the result.
fn verify(ctx: &mut WorkerContext, job: Rc<Job>) -> Result<()> {
    let comm = ctx.comm()?;
    comm.enqueue(&job.group)?;
    comm.synchronize()?;
    let Some((tensor, expected)) = &job.result else { return Ok(()) };
    let host = Tensor::zeros(DType::F32, tensor.shape().clone())?;
    ctx.queue().copy_out(&host, tensor)?;
    let deadline = ctx.deadline();
    ctx.queue().synchronize(deadline)?;
    let wrong = host.view::<f32>()?.iter().enumerate().position(|(index, value)| *value != expected(index));
    wrong.map_or(Ok(()), |index| Err(Error::invalid(format!("{}: element {index} is wrong", job.group[0].kind()))))
}

/// The source and destination of the job. A missing one is replaced by the other.
fn tensors(_: &mut WorkerContext, job: Rc<Job>) -> Result<Value> {
    let [op] = &job.group;
    let pair = [op.src().or(op.dst()), op.dst().or(op.src())];
    Ok(Value::Array(pair.into_iter().flatten().cloned().map(Value::Tensor).collect()))
}

/// Seconds that `iters` of them take.
fn run(ctx: &mut WorkerContext, job: Rc<Job>, iters: u64) -> Result<f64> {
    let comm = ctx.comm()?;
    for _ in 0..WARM_UP {
        comm.enqueue(&job.group)?;
    }
    comm.synchronize()?;
    comm.barrier()?;
    let start = Instant::now();
    for _ in 0..iters {
        comm.enqueue(&job.group)?;
    }
    comm.synchronize()?;
    Ok(start.elapsed().as_secs_f64())
}

/// The time of `iters` runs on the slowest rank.
fn time(session: &dyn Session, job: &DRef, iters: u64) -> Duration {
    common::slowest(session, "benches.run", (job, iters as i64))
}

/// A job that gave the right result once.
fn job(session: &dyn Session, kind: OpKind, count: usize, in_place: bool) -> Result<DRef> {
    block_on(async {
        let job = session.call("benches.prepare", (kind.name(), count as i64, in_place)).await?;
        session.call("benches.verify", (&job,)).await?;
        session.sync_all().await?;
        Ok(job)
    })
}

fn collective(criterion: &mut Criterion) {
    let settings = common::settings(2);
    let (backend, workers) = (settings.backend.clone(), settings.workers);
    let session = settings.builder().start().expect("workers can be started");
    if let Err(error) = block_on(session.init_ccl(&backend, &[])) {
        // Never another backend in its place: the figures would be taken for this one's.
        eprintln!("collective: {error}");
        std::process::exit(1);
    }
    let session: &dyn Session = &session;
    common::print_placement();
    for (kind, in_place) in KINDS.into_iter().map(|kind| (kind, false)).chain([(OpKind::AllReduce, true)]) {
        let name = format!("{kind}{}/{backend} {workers}", if in_place { " in place" } else { "" });
        let mut group = criterion.benchmark_group(&name);
        // Without measuring, only two sizes: one that is posted inline and one that is not.
        let sizes = if common::measures() { &SIZES[..] } else { &SIZES[..2] };
        for &bytes in sizes {
            let count = (bytes / size_of::<f32>()).next_multiple_of(workers);
            let job = job(session, kind, count, in_place).expect("the result is right");
            group.throughput(Throughput::Bytes(bytes as u64));
            group.bench_function(BenchmarkId::from_parameter(bytes), |bencher| {
                bencher.iter_custom(|iters| time(session, &job, iters));
            });
        }
        group.finish();
        for bytes in SIZES {
            compare(session, &name, (kind, in_place), bytes);
        }
        common::print_placement();
    }
}

/// The sources and destinations of all workers.
async fn parts(session: &dyn Session, job: &DRef) -> Result<(Vec<Tensor>, Vec<Tensor>)> {
    let tensors = session.call("benches.tensors", (job,)).await?;
    let pairs = session.values(&tensors).await?;
    let part = |pair: &Value| match pair {
        Value::Array(pair) => match &pair[..] {
            [Value::Tensor(input), Value::Tensor(output)] => Ok((input.clone(), output.clone())),
            _ => Err(Error::invalid("no source and destination")),
        },
        _ => Err(Error::invalid("no tensors")),
    };
    pairs.iter().map(part).collect()
}

/// Prints our time beside the floor's. With worker threads, both use the same tensors: the time for data that just fits in
/// the caches depends on where they are.
fn compare(session: &dyn Session, name: &str, (kind, in_place): (OpKind, bool), bytes: usize) {
    if !common::measures() {
        return;
    }
    let workers = session.world().size();
    let count = (bytes / size_of::<f32>()).next_multiple_of(workers);
    let job = job(session, kind, count, in_place).expect("the result is right");
    let floor = match common::settings(2).session {
        SessionKind::Threads => {
            let (inputs, outputs) = block_on(parts(session, &job)).expect("the workers have tensors");
            Floor::on(kind, inputs, outputs, count)
        }
        _ => Floor::new(kind, in_place, workers, count),
    };
    let iters = (ROUND_SECONDS / (0.2e-6 + bytes as f64 / 10e9)).max(10.0) as u64;
    common::compare(
        &format!("{name}/{bytes}"),
        || time(session, &job, iters) / iters as u32,
        &mut [("floor", &mut || floor.run(iters, false)), ("past the caches", &mut || floor.run(iters, true))],
    );
}

criterion_group!(benches, collective);

pub(crate) fn main() {
    common::run(benches);
}
