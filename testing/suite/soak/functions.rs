//! Worker functions of the soak.

use std::ops::Sub;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use std::{process, thread};

use disco::function::BoxError;
use disco::{
    Abort, AbortCause, Capabilities, Communicator, CommunicatorExt, DType, Element, Error, Json, Op, Rank, Reduction,
    Result, Scope, Tensor, Value, Work, WorkerContext,
};
use disco_conformance::waiting;
use rustix::process::{Signal, getpid, kill_process};
use serde::{Deserialize, Serialize};

use super::content::{self, Content, Record};
use super::exchange::{self, Burst, Exchange, Kind, Memory, TURN, uneven, uneven_pair};

disco::register_error!(Diverged);
disco::register_function!("soak.hold", hold);
disco::register_function!("soak.content", content);
disco::register_function!("soak.record", record);
disco::register_function!("soak.digest", digest);
disco::register_function!("soak.diverge", diverge);
disco::register_function!("soak.make", make);
disco::register_function!("soak.exchange", exchange_one);
disco::register_function!("soak.source", source);
disco::register_function!("soak.target", target);
disco::register_function!("soak.burst", burst);
disco::register_function!("soak.reduce", reduce);
disco::register_function!("soak.pid", pid);
disco::register_function!("soak.hash", hash);
disco::register_function!("soak.add", add);
disco::register_function!("soak.length", length);
disco::register_function!("soak.meet", meet);
disco::register_function!("soak.fail", fail);
disco::register_function!("soak.sleep", sleep);
disco::register_function!("soak.late", late);
disco::register_function!("soak.count", count);
disco::register_function!("soak.emit", emit);
disco::register_function!("soak.endure", endure);
disco::register_function!("soak.together", together);

/// Registers [`TURN`] for integers, which wrap, and for floats.
macro_rules! register_turn {
    ($($ty:ty: $minus:expr),*) => {$(
        disco::register_reduction!(TURN.name(), $ty, |into, from, row| {
            for (into, from) in into.chunks_exact_mut(row).zip(from.chunks_exact(row)) {
                into.iter_mut().enumerate().for_each(|(at, own)| *own = $minus(from[(at + 1) % row], *own));
            }
        });
    )*};
}

register_turn!(u8: u8::wrapping_sub, i16: i16::wrapping_sub, i32: i32::wrapping_sub, u32: u32::wrapping_sub);
register_turn!(i64: i64::wrapping_sub, f32: <f32 as Sub>::sub, f64: <f64 as Sub>::sub);

/// A registered error type of this program.
#[derive(Clone, Debug, PartialEq, thiserror::Error, Serialize, Deserialize)]
#[error("the loss is infinite in step {step}, on purpose")]
pub(crate) struct Diverged {
    pub(crate) step: i64,
    pub(crate) layers: Vec<String>,
}

/// An error with a registered error as its cause.
#[derive(Debug, thiserror::Error)]
#[error("training failed")]
struct Failed(#[source] Diverged);

/// Returns the argument.
fn hold(_: &mut WorkerContext, value: Value) -> Result<Value> {
    Ok(value)
}

/// Returns a value whose seed depends on the worker.
fn content(ctx: &mut WorkerContext, form: usize, size: usize, seed: usize) -> Result<Value> {
    Content::from_args((form, size, seed + ctx.worker().index())).value()
}

/// Returns a record whose seed depends on the worker.
fn record(ctx: &mut WorkerContext, size: usize, seed: usize) -> Result<Json<Record>> {
    Ok(Json(Content::of_record(size, seed + ctx.worker().index()).record()))
}

/// Emits `count` numbers.
fn emit(ctx: &mut WorkerContext, count: i64) -> Result<()> {
    let first = 1000 * ctx.worker().wire();
    (first..first + count).try_for_each(|number| ctx.emit(number))
}

/// The operations of a call that all workers take part in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Together {
    Sum,
    /// Sums again and again, and leaves once the call is cancelled.
    Sums,
    /// Starts a sum and does not wait for it.
    Start,
    StartAndWait,
    /// Splits into two communicators, sums on one of them and on the parent.
    Split,
    /// Each rank sends to the next one.
    Ring,
    /// Uses no communicator, and leaves once the call is cancelled.
    Alone,
}

impl Together {
    pub(crate) const ALL: [Self; 7] =
        [Self::Sum, Self::Sums, Self::Start, Self::StartAndWait, Self::Split, Self::Ring, Self::Alone];
    /// The result of a function that has left early.
    pub(crate) const LEFT: i64 = -1;

    pub(crate) fn number(self) -> i64 {
        self as i64
    }

    /// The result on each of `workers` workers.
    pub(crate) fn expected(self, number: i64, workers: usize) -> i64 {
        if let Self::Start | Self::Alone = self { 0 } else { number * workers as i64 }
    }
}

fn together(ctx: &mut WorkerContext, how: i64, number: i64, elements: usize) -> Result<i64> {
    let how = Together::ALL[how as usize];
    let (me, size) = (ctx.worker().index(), ctx.world().size());
    let x = Tensor::from_vec(vec![number; elements], elements)?;
    let last = |x: &Tensor| Ok(x.view::<i64>()?[elements - 1]);
    let sum = |x: &Tensor| Op::AllReduce { src: None, dst: x.clone(), reduction: Reduction::Sum };
    match how {
        Together::Sum => ctx.comm()?.enqueue(&[sum(&x)])?,
        Together::Sums => {
            for _ in 0..20 {
                if ctx.cancelled() {
                    return Ok(Together::LEFT);
                }
                x.view_mut::<i64>()?.fill(number);
                ctx.comm()?.enqueue(&[sum(&x)])?;
            }
        }
        Together::Start => {
            drop(ctx.comm()?.start(&[sum(&x)])?);
            return Ok(0);
        }
        Together::StartAndWait => ctx.comm()?.start(&[sum(&x)])?.wait()?,
        Together::Split => {
            let y = x.clone();
            let child = ctx.comm()?.split(Some(me as u32 % 2), 0)?;
            child.map_or(Ok(()), |mut child| child.enqueue(&[sum(&y)]))?;
            x.view_mut::<i64>()?.fill(number);
            ctx.comm()?.enqueue(&[sum(&x)])?;
        }
        Together::Ring => {
            let from = Tensor::from_vec(vec![0i64; elements], elements)?;
            let (next, previous) = ((me + 1) % size, (me + size - 1) % size);
            let send = Op::Send { src: x, to: Rank::new(next as u32) };
            let recv = Op::Recv { dst: from.clone(), from: Rank::new(previous as u32) };
            ctx.comm()?.enqueue(&[send, recv])?;
            return last(&from).map(|got| got * size as i64);
        }
        Together::Alone => {
            return Ok(if endure(ctx, 2)? { Together::LEFT } else { 0 });
        }
    }
    last(&x)
}

/// Ends after `limit` ms or once it is cancelled. Returns whether it was.
fn endure(ctx: &mut WorkerContext, limit: u64) -> Result<bool> {
    let start = Instant::now();
    while start.elapsed() < Duration::from_millis(limit) && !ctx.cancelled() {
        thread::yield_now();
    }
    Ok(ctx.cancelled())
}

/// Returns hashes of the arguments.
fn digest(_: &mut WorkerContext, first: Value, held: Value, last: Value) -> Result<Json<Vec<i64>>> {
    [first, held, last].iter().map(content::digest).collect::<Result<_>>().map(Json)
}

/// Fails on one worker with [`Diverged`], or with an error whose cause it is.
fn diverge(ctx: &mut WorkerContext, worker: u32, step: i64, is_cause: bool) -> Result<(), BoxError> {
    if ctx.worker() != worker.into() {
        return Ok(());
    }
    let diverged = Diverged::of(step);
    Err(if is_cause { Failed(diverged).into() } else { diverged.into() })
}

impl Diverged {
    /// The error of a step. Its size grows with the step's number.
    pub(crate) fn of(step: i64) -> Self {
        Self { step, layers: (0..step).map(|layer| format!("layer \"{layer}\"")).collect() }
    }
}

/// Makes a tensor of this worker's elements.
fn make(ctx: &mut WorkerContext, dtype: DType, count: usize, seed: usize, memory: usize) -> Result<Tensor> {
    let tensor = output(ctx, dtype, count, Memory::ALL[memory])?;
    let mut bytes = Vec::with_capacity(tensor.byte_len());
    let worker = ctx.worker().index();
    (0..count).for_each(|index| exchange::encode(dtype, exchange::element(worker, index, seed), &mut bytes));
    tensor.bytes_mut()?.copy_from_slice(&bytes);
    Ok(tensor)
}

fn output(ctx: &mut WorkerContext, dtype: DType, count: usize, memory: Memory) -> Result<Tensor> {
    match memory {
        Memory::Shared => ctx.empty(dtype, [count as i64]),
        Memory::Private => Tensor::zeros(dtype, [count as i64]),
        Memory::Lent => match dtype {
            DType::U8 => lent::<u8>(count),
            DType::I16 => lent::<i16>(count),
            DType::I32 => lent::<i32>(count),
            DType::U32 => lent::<u32>(count),
            DType::I64 => lent::<i64>(count),
            DType::F32 => lent::<f32>(count),
            DType::F64 => lent::<f64>(count),
            other => Err(Error::invalid(format!("{other} is not among the element types of the soak"))),
        },
    }
}

/// A tensor of a lent vector's elements, without the first: it starts at an odd address.
fn lent<T: Element + Default>(count: usize) -> Result<Tensor> {
    Tensor::from_owner(vec![T::default(); count + 1], |elements| &mut elements[1..], count)
}

/// The result of an exchange, in a new tensor.
fn exchange_one(
    ctx: &mut WorkerContext,
    x: Tensor,
    kind: usize,
    scope: usize,
    reduction: usize,
    root: usize,
    memory: usize,
) -> Result<Tensor> {
    run(ctx, x, &Exchange::from_args((kind, scope, reduction, root, memory)))
}

fn run(ctx: &mut WorkerContext, x: Tensor, exchange: &Exchange) -> Result<Tensor> {
    let mut child = None;
    let worker = ctx.worker().index();
    let scope = exchange.scope.of_session(ctx.world().size())?;
    let (me, ranks) = match &scope {
        None => {
            let comm = ctx.comm()?.split(Some(worker as u32 % 2), -(worker as i32))?.ok_or(Error::NoCommunicator)?;
            let comm = child.insert(comm);
            (comm.rank().index(), comm.size())
        }
        Some(scope) => {
            let comm = ctx.comm_in(scope)?;
            (comm.rank().index(), comm.size())
        }
    };
    let (count, dtype) = (x.elements(), x.dtype());
    let root = Rank::new((exchange.root % ranks) as u32);
    let at_root = root.index() == me;
    let elements = result_elements(exchange.kind, count, me, ranks, at_root);
    let dst = output(ctx, dtype, elements, exchange.memory)?;
    let comm = match (&mut child, &scope) {
        (Some(child), _) => &mut **child,
        (None, scope) => ctx.comm_in(scope.as_ref().unwrap_or(&Scope::World))?,
    };
    if (count + worker + exchange.root).is_multiple_of(3) {
        let mut starter = Starter { comm: &mut *comm, works: Vec::new() };
        enqueue(&mut starter, exchange, &x, &dst)?;
        starter.works.iter().try_for_each(Work::wait)?;
    } else {
        enqueue(comm, exchange, &x, &dst)?;
    }
    comm.synchronize()?;
    let keeps_input = matches!(exchange.kind, Kind::Reduce | Kind::Gather) && !at_root;
    Ok(if keeps_input || exchange.kind == Kind::Barrier { x } else { dst })
}

/// Starts all operations that are enqueued.
#[derive(Debug)]
struct Starter<'a> {
    comm: &'a mut dyn Communicator,
    works: Vec<Work>,
}

impl Communicator for Starter<'_> {
    fn rank(&self) -> Rank {
        self.comm.rank()
    }

    fn size(&self) -> usize {
        self.comm.size()
    }

    fn capabilities(&self) -> Capabilities {
        self.comm.capabilities()
    }

    fn enqueue(&mut self, ops: &[Op]) -> Result<()> {
        self.works.push(self.comm.start(ops)?);
        Ok(())
    }

    fn split(&mut self, color: Option<u32>, key: i32) -> Result<Option<Box<dyn Communicator>>> {
        self.comm.split(color, key)
    }

    fn synchronize(&mut self) -> Result<()> {
        self.comm.synchronize()
    }

    fn aborter(&self) -> Arc<dyn Abort> {
        self.comm.aborter()
    }
}

/// Enqueues the operations of an exchange from `x` to `dst`.
fn enqueue(comm: &mut dyn Communicator, exchange: &Exchange, x: &Tensor, dst: &Tensor) -> Result<()> {
    let (me, ranks) = (comm.rank().index(), comm.size());
    let (count, block) = (x.elements(), x.elements() / ranks);
    let root = Rank::new((exchange.root % ranks) as u32);
    let at_root = root.index() == me;
    let blocks = x.window(0, [(ranks * block) as i64])?;
    let reduction = exchange.reduction;
    match exchange.kind {
        Kind::AllReduce => comm.all_reduce(&in_rows(x, count)?, &in_rows(dst, count)?, reduction)?,
        Kind::Reduce => {
            let dst = if at_root { Some(in_rows(dst, count)?) } else { None };
            comm.reduce(&in_rows(x, count)?, dst.as_ref(), reduction, root)?;
        }
        Kind::ReduceScatter => comm.reduce_scatter(&in_rows(&blocks, block)?, &in_rows(dst, block)?, reduction)?,
        Kind::AllGather => comm.all_gather(x, dst)?,
        Kind::AllGatherV => {
            let counts: Vec<usize> = (0..ranks).map(|from| uneven(from, count)).collect();
            comm.all_gather_v(&x.window(0, [counts[me] as i64])?, dst, &counts)?;
        }
        Kind::Broadcast => {
            comm.enqueue(&[Op::Broadcast { src: at_root.then(|| x.clone()), dst: dst.clone(), root }])?;
        }
        Kind::Gather => comm.gather(x, at_root.then_some(dst), root)?,
        Kind::Scatter => comm.scatter(at_root.then_some(&blocks), dst, root)?,
        Kind::AllToAll => comm.all_to_all(&blocks, dst)?,
        Kind::AllToAllV => {
            let send: Vec<usize> = (0..ranks).map(|to| uneven_pair(me, to, block)).collect();
            let recv: Vec<usize> = (0..ranks).map(|from| uneven_pair(from, me, block)).collect();
            let src = x.window(0, [send.iter().sum::<usize>() as i64])?;
            comm.all_to_all_v((&src, &send), (dst, &recv))?;
        }
        Kind::Barrier => comm.barrier()?,
        Kind::Ring => {
            let [to, from] = [me + 1, me + ranks - 1].map(|rank| Rank::new((rank % ranks) as u32));
            comm.enqueue(&[Op::Send { src: x.clone(), to }, Op::Recv { dst: dst.clone(), from }])?;
        }
        Kind::Sends => {
            let mut group = Vec::new();
            for rank in 0..ranks {
                let [src, dst] = [x, dst].map(|of| of.window(rank * block, [block as i64]));
                let peer = Rank::new(rank as u32);
                group.extend([Op::Send { src: src?, to: peer }, Op::Recv { dst: dst?, from: peer }]);
            }
            comm.enqueue(&group)?;
        }
    }
    Ok(())
}

/// The same elements with the rows of a reduction of blocks of `block` elements.
fn in_rows(tensor: &Tensor, block: usize) -> Result<Tensor> {
    let row = exchange::row(block);
    tensor.window(0, [tensor.elements() / row, row])
}

/// Number of elements that the result of an exchange has on rank `me`, whose input has `count` elements.
fn result_elements(kind: Kind, count: usize, me: usize, ranks: usize, at_root: bool) -> usize {
    let block = count / ranks;
    match kind {
        Kind::AllReduce | Kind::Reduce | Kind::Broadcast | Kind::Barrier | Kind::Ring => count,
        Kind::ReduceScatter | Kind::Scatter => block,
        Kind::AllGather => ranks * count,
        Kind::Gather => count * if at_root { ranks } else { 1 },
        Kind::AllGatherV => (0..ranks).map(|from| uneven(from, count)).sum(),
        Kind::AllToAll | Kind::Sends => ranks * block,
        Kind::AllToAllV => (0..ranks).map(|from| uneven_pair(from, me, block)).sum(),
    }
}

/// The source of an exchange by handles: the part of a tensor that it sends.
fn source(ctx: &mut WorkerContext, x: Tensor, kind: usize, scope: Scope) -> Result<Tensor> {
    let comm = ctx.comm_in(&scope)?;
    let (me, ranks) = (comm.rank().index(), comm.size());
    let block = x.elements() / ranks;
    let elements = match Kind::ALL[kind] {
        Kind::AllGatherV => uneven(me, x.elements()),
        Kind::AllToAllV => (0..ranks).map(|to| uneven_pair(me, to, block)).sum(),
        Kind::ReduceScatter | Kind::Scatter | Kind::AllToAll => ranks * block,
        _ => x.elements(),
    };
    let block = if Kind::ALL[kind] == Kind::ReduceScatter { block } else { elements };
    by_handles(&x.window(0, [elements as i64])?, kind, block)
}

/// A tensor of an exchange by handles: in a reduction of blocks of `block` elements with rows.
fn by_handles(tensor: &Tensor, kind: usize, block: usize) -> Result<Tensor> {
    match Kind::ALL[kind] {
        Kind::AllReduce | Kind::Reduce | Kind::ReduceScatter => in_rows(tensor, block),
        _ => Ok(tensor.clone()),
    }
}

/// The destination of an exchange by handles: a copy of the input on ranks that get no result.
fn target(ctx: &mut WorkerContext, x: Tensor, kind: usize, root: usize, scope: Scope) -> Result<Tensor> {
    let comm = ctx.comm_in(&scope)?;
    let (me, ranks) = (comm.rank().index(), comm.size());
    let (count, block) = (x.elements(), x.elements() / ranks);
    let elements = match Kind::ALL[kind] {
        Kind::Gather if me == root => ranks * count,
        Kind::AllGather => ranks * count,
        Kind::AllGatherV => (0..ranks).map(|from| uneven(from, count)).sum(),
        Kind::AllToAll => ranks * block,
        Kind::AllToAllV => (0..ranks).map(|from| uneven_pair(from, me, block)).sum(),
        Kind::ReduceScatter | Kind::Scatter => block,
        _ => count,
    };
    let target = ctx.empty(x.dtype(), [elements as i64])?;
    if elements == count {
        target.bytes_mut()?.copy_from_slice(&x.bytes()?);
    }
    by_handles(&target, kind, elements)
}

/// Runs the exchanges of a burst back to back, and returns a hash of the hashes of all results.
fn burst(ctx: &mut WorkerContext, seed: i64, exchanges: usize) -> Result<i64> {
    let bursts = Burst::draw(seed.cast_unsigned(), exchanges);
    let make = |burst: &Burst| make(ctx, burst.dtype, burst.count, burst.seed, burst.memory.number() as usize);
    let inputs: Vec<Tensor> = bursts.iter().map(make).collect::<Result<_>>()?;
    let results = bursts.iter().zip(inputs).map(|(burst, x)| run(ctx, x, &burst.exchange));
    let results: Vec<Tensor> = results.collect::<Result<_>>()?;
    let mut hashes = Vec::new();
    for result in results {
        hashes.extend(exchange::hash(&result.bytes()?).to_ne_bytes());
    }
    Ok(exchange::hash(&hashes))
}

/// All-reduces a large tensor `rounds` times.
fn reduce(ctx: &mut WorkerContext, count: i64, rounds: usize) -> Result<()> {
    let x = ctx.empty(DType::F32, [count])?;
    (0..rounds).try_for_each(|_| ctx.comm()?.all_reduce_in_place(&x, Reduction::Sum))
}

fn pid(_: &mut WorkerContext) -> Result<i64> {
    Ok(process::id().into())
}

fn hash(_: &mut WorkerContext, x: Tensor) -> Result<i64> {
    Ok(exchange::hash(&x.bytes()?))
}

fn add(_: &mut WorkerContext, x: i64, y: i64) -> Result<i64> {
    Ok(x.wrapping_add(y))
}

fn length(_: &mut WorkerContext, bytes: Vec<u8>) -> Result<i64> {
    Ok(bytes.len() as i64)
}

/// Synchronizes all workers through the store: the last worker to arrive wakes the others. Returns the number of
/// arrivals.
fn meet(ctx: &mut WorkerContext, key: String) -> Result<i64> {
    let (store, workers) = (ctx.store(), ctx.world().size() as i64);
    if store.add(&format!("{key} came"), 1)? == workers {
        store.set(&format!("{key} all"), b"")?;
    }
    store.wait(&format!("{key} all"), Duration::from_secs(20))?;
    store.add(&format!("{key} came"), 0)
}

/// One worker fails in the way `how`; the others return.
fn fail(ctx: &mut WorkerContext, worker: u32, how: String) -> Result<()> {
    if ctx.worker() != worker.into() {
        return Ok(());
    }
    match &*how {
        "error" => Err(Error::invalid("on purpose")),
        "panic" => panic!("on purpose"),
        "abort" => {
            ctx.comm()?.aborter().abort(&"on purpose".into());
            ctx.comm()?.synchronize()
        }
        "exit" => process::exit(7),
        "kill" | "stop" => {
            let signal = if how == "kill" { Signal::KILL } else { Signal::STOP };
            kill_process(getpid(), signal).map_err(|error| Error::invalid(error.to_string()))?;
            // Another thread of the process may get the signal first.
            waiting::hang()
        }
        other => Err(Error::invalid(format!("no such failure: {other}"))),
    }
}

fn sleep(ctx: &mut WorkerContext, worker: u32, milliseconds: u64) -> Result<()> {
    if ctx.worker() == worker.into() {
        thread::sleep(Duration::from_millis(milliseconds));
    }
    Ok(())
}

/// One worker is late: the session has failed, and maybe recovered, when it uses its store. The store must fail at once
/// and must not count.
fn late(ctx: &mut WorkerContext, worker: u32, milliseconds: u64) -> Result<()> {
    if ctx.worker() != worker.into() {
        return Ok(());
    }
    let (store, heard) = (ctx.store(), Arc::new(AbortFlag::default()));
    ctx.link().on_abort(&(heard.clone() as Arc<dyn Abort>));
    waiting::wait_until("the abort", || heard.0.load(Ordering::Acquire));
    // The session recovers meanwhile, or does not.
    sleep(ctx, worker, milliseconds)?;
    let start = Instant::now();
    let added = store.add("late", 1);
    let waited = store.wait("a key that no worker sets", Duration::from_secs(10));
    match (added, waited) {
        (Err(_), Err(_)) if start.elapsed() < Duration::from_secs(5) => Ok(()),
        other => {
            eprintln!("soak: the store of a late {} gave {other:?} after {:?}", ctx.worker(), start.elapsed());
            process::abort()
        }
    }
}

/// Records an abort of the session.
#[derive(Default)]
struct AbortFlag(AtomicBool);

impl Abort for AbortFlag {
    fn abort(&self, _: &AbortCause) {
        self.0.store(true, Ordering::Release);
    }
}

/// How often late workers of earlier epochs counted in the store of this epoch; must be 0.
fn count(ctx: &mut WorkerContext) -> Result<i64> {
    ctx.store().add("late", 0)
}
