//! Worker functions of the soak.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering, compiler_fence};
use std::time::{Duration, Instant};
use std::{process, thread};

use disco::function::BoxError;
use disco::{
    Abort, AbortCause, CommunicatorExt, DType, Error, Json, Op, Rank, Reduction, Result, Tensor, Value, WorkerContext,
};
use disco_conformance::waiting;
use rustix::process::{Signal, getpid, kill_process};
use serde::{Deserialize, Serialize};

use super::content::{self, Content, Record};
use super::exchange;

disco::register_error!(Diverged);
disco::register_function!("soak.hold", hold);
disco::register_function!("soak.content", content);
disco::register_function!("soak.record", record);
disco::register_function!("soak.digest", digest);
disco::register_function!("soak.diverge", diverge);
disco::register_function!("soak.reduce", reduce);
disco::register_function!("soak.pid", pid);
disco::register_function!("soak.hash", hash);
disco::register_function!("soak.outlive", outlive);
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

/// Adds to a number in memory that outlives the worker, which may be lost at any moment: the number is there twice, each time with its
/// double, and before them which one counts.
fn outlive(ctx: &mut WorkerContext, amount: i64) -> Result<i64> {
    let kept = ctx.keep("soak", DType::I64, [5])?;
    let mut numbers = kept.tensor.view_mut::<i64>()?;
    let (now, next) = if numbers[0] == 0 { (1, 3) } else { (3, 1) };
    if numbers[now + 1] != 2 * numbers[now] || kept.is_new && numbers[now] != 0 {
        return Err(Error::invalid(format!("memory that outlives its worker has {:?}", &*numbers)));
    }
    let sum = numbers[now] + amount;
    (numbers[next], numbers[next + 1]) = (sum, 2 * sum);
    // What is written above is there before it counts.
    compiler_fence(Ordering::SeqCst);
    numbers[0] = i64::from(now == 1);
    Ok(sum)
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
