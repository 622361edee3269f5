//! Worker functions of these tests.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
use std::{fs, process};

use disco::function::BoxError;
use disco::{
    CommunicatorExt as _, DType, Error, Json, Reduction, Result, Store, Tensor, Value, WorkerContext, WorkerId,
};
use disco_conformance::waiting;
use rustix::process::{Signal, getpid, kill_process};
use serde::{Deserialize, Serialize};

disco::register_error!(Diverged);
disco::register_function!("tests.count", count);
disco::register_function!("tests.diverge", diverge);
disco::register_function!("tests.diverge_at_length", diverge_at_length);
disco::register_function!("tests.double", double);
disco::register_function!("tests.echo", echo);
disco::register_function!("kinds.exit", exit);
disco::register_function!("tests.freeze", freeze);
disco::register_function!("tests.held_works", held_works);
disco::register_function!("kinds.hang", hang);
disco::register_function!("tests.hold", hold);
disco::register_function!("tests.increment", increment);
disco::register_function!("tests.keyed", keyed);
disco::register_function!("tests.late", late);
disco::register_function!("kinds.late_sum", late_sum);
disco::register_function!("tests.lists", lists);
disco::register_function!("tests.mark", mark);
disco::register_function!("tests.marks", marks);
disco::register_function!("kinds.pid", pid);
disco::register_function!("kinds.stay", stay);
disco::register_function!("tests.stay_and_fail", stay_and_fail);
disco::register_function!("kinds.sum", sum);
disco::register_function!("tests.whoami", whoami);
disco::register_function!("tests.widen", widen);

/// A registered error type of this program.
#[derive(Debug, PartialEq, thiserror::Error, Serialize, Deserialize)]
#[error("the loss is {loss} in step {step}")]
pub(crate) struct Diverged {
    pub(crate) step: u64,
    pub(crate) loss: f32,
    pub(crate) layers: Vec<String>,
}

/// An error with a registered error as its cause.
#[derive(Debug, thiserror::Error)]
#[error("training failed")]
struct Failed(#[source] Diverged);

/// A type with serde implementations.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Layer {
    pub(crate) name: String,
    pub(crate) units: usize,
    pub(crate) rate: Option<f64>,
}

fn lists(
    _: &mut WorkerContext,
    rates: Vec<f32>,
    mut names: Vec<String>,
    counts: Vec<usize>,
    (number, word): (i64, String),
) -> Result<(Vec<f32>, Vec<String>)> {
    names.extend(counts.iter().map(usize::to_string));
    names.extend([number.to_string(), word]);
    Ok((rates, names))
}

fn whoami(ctx: &mut WorkerContext) -> Result<i64> {
    Ok(ctx.worker().wire())
}

fn echo(_: &mut WorkerContext, value: Value) -> Result<Value> {
    Ok(value)
}

fn widen(ctx: &mut WorkerContext, by: usize, Json(layer): Json<Layer>) -> Result<Json<Layer>> {
    let name = format!("{} of {}", layer.name, ctx.worker());
    Ok(Json(Layer { name, units: by * layer.units, ..layer }))
}

/// Returns a map that has no JSON form, because its keys are tuples.
fn keyed(_: &mut WorkerContext) -> Result<Json<BTreeMap<(i64, i64), i64>>> {
    Ok(Json(BTreeMap::from([((1, 2), 3)])))
}

/// Fails on one worker with [`Diverged`], or with an error whose cause it is.
fn diverge(ctx: &mut WorkerContext, worker: u32, loss: f64, is_cause: bool) -> Result<(), BoxError> {
    if ctx.worker() != worker.into() {
        return Ok(());
    }
    let diverged = Diverged { step: 17, loss: loss as f32, layers: vec!["dense".into()] };
    Err(if is_cause { Failed(diverged).into() } else { diverged.into() })
}

/// Fails on one worker with an error of more than `bytes` bytes.
fn diverge_at_length(ctx: &mut WorkerContext, worker: u32, bytes: usize) -> Result<(), Diverged> {
    if ctx.worker() == worker.into() {
        Err(Diverged { step: 0, loss: 0.0, layers: vec!["x".repeat(bytes)] })
    } else {
        Ok(())
    }
}

fn count(_: &mut WorkerContext, number: i64) -> Result<i64> {
    Ok(number + 1)
}

/// Adds 1 to each byte in place and returns the sum of all bytes.
fn increment(_: &mut WorkerContext, x: Tensor) -> Result<u64> {
    let mut elements = x.view_mut::<u64>()?;
    elements.iter_mut().for_each(|element| *element += 1);
    Ok(elements.iter().sum())
}

/// Returns the concatenation of both tensors' bytes, each byte doubled.
fn double(ctx: &mut WorkerContext, a: Tensor, _: String, b: Tensor) -> Result<Tensor> {
    let (a, b) = (a.bytes()?, b.bytes()?);
    let both = ctx.empty(DType::U8, [(a.len() + b.len()) as i64])?;
    let mut view = both.bytes_mut()?;
    let (first, second) = view.split_at_mut(a.len());
    first.copy_from_slice(&a);
    second.copy_from_slice(&b);
    double_each(&mut view);
    drop(view);
    Ok(both)
}

/// Doubles each byte, eight at a time.
pub(crate) fn double_each(bytes: &mut [u8]) {
    let (words, rest) = bytes.as_chunks_mut();
    for word in words {
        // The mask keeps the highest bit of a byte from shifting into the next byte.
        *word = ((u64::from_le_bytes(*word) & 0x7f7f_7f7f_7f7f_7f7f) << 1).to_le_bytes();
    }
    rest.iter_mut().for_each(|byte| *byte = byte.wrapping_mul(2));
}

/// Exits the process of one worker.
fn exit(ctx: &mut WorkerContext, worker: u32) -> Result<()> {
    if ctx.worker() == worker.into() {
        process::exit(7);
    }
    Ok(())
}

/// The sum of a tensor's bytes.
fn sum(_: &mut WorkerContext, tensor: Tensor) -> Result<i64> {
    Ok(tensor.bytes()?.iter().map(|byte| i64::from(*byte)).sum())
}

fn pid(_: &mut WorkerContext) -> Result<i64> {
    Ok(process::id().into())
}

/// One worker creates `file`.
fn mark(ctx: &mut WorkerContext, worker: u32, file: String) -> Result<()> {
    if ctx.worker() == worker.into() {
        fs::write(file, b"").map_err(|error| Error::invalid(error.to_string()))
    } else {
        Ok(())
    }
}

/// One worker creates `file`, and does not return.
fn hang(ctx: &mut WorkerContext, worker: u32, file: String) -> Result<()> {
    mark(ctx, worker, file)?;
    if ctx.worker() == worker.into() {
        waiting::hang();
    }
    Ok(())
}

/// One worker creates `file` and waits until it is removed.
fn stay(ctx: &mut WorkerContext, worker: u32, file: String) -> Result<()> {
    mark(ctx, worker, file.clone())?;
    if ctx.worker() == worker.into() {
        wait_for_removal(&file);
    }
    Ok(())
}

/// As [`stay`], and fails then.
fn stay_and_fail(ctx: &mut WorkerContext, worker: u32, file: String) -> Result<()> {
    stay(ctx, worker, file)?;
    if ctx.worker() == worker.into() { Err(Error::invalid("no weights")) } else { Ok(()) }
}

/// Waits until `file` is removed.
pub(crate) fn wait_for_removal(file: &str) {
    waiting::wait_until("the removal of a file", || !fs::exists(file).unwrap());
}

/// One worker stops its process with SIGSTOP, or hangs if that is the controller's process.
fn freeze(ctx: &mut WorkerContext, worker: u32, controller: i64, file: String) -> Result<()> {
    if ctx.worker() == worker.into() && i64::from(process::id()) != controller {
        fs::write(file, b"").map_err(|error| Error::invalid(error.to_string()))?;
        kill_process(getpid(), Signal::STOP).map_err(|error| Error::invalid(error.to_string()))?;
        return Ok(());
    }
    hang(ctx, worker, file)
}

/// Worker `failing` fails. Worker `late` waits until `file` is removed, then uses two stores: one obtained before the wait
/// and one obtained after it. Returns both results, and whether they came within 5 s.
fn late(ctx: &mut WorkerContext, failing: u32, late: u32, file: String) -> Result<String> {
    if ctx.worker() == failing.into() {
        return Err(Error::invalid("out of luck"));
    }
    if ctx.worker() != late.into() {
        return Ok(String::new());
    }
    let before = ctx.store();
    wait_for_removal(&file);
    let start = Instant::now();
    let of = |store: &dyn Store| {
        let wait = store.wait("nobody sets this", Duration::from_secs(15)).map(drop);
        format!("{:?} {:?}", wait.map_err(|error| error.to_string()), store.add("count", 1).is_ok())
    };
    let told = format!("{} {}", of(&*before), of(&*ctx.store()));
    Ok(format!("{told} {}", start.elapsed() < Duration::from_secs(5)))
}

/// Stores that workers of this process hold, by session and worker.
static HELD: Mutex<BTreeMap<(usize, WorkerId), Arc<dyn Store>>> = Mutex::new(BTreeMap::new());

/// Key of [`HELD`]. The address of a worker's activity identifies the session, because tests run concurrently.
fn held_key(ctx: &WorkerContext) -> (usize, WorkerId) {
    (Arc::as_ptr(ctx.link().activity()).addr(), ctx.worker())
}

/// Keeps the worker's store in [`HELD`]. One worker fails.
fn hold(ctx: &mut WorkerContext, failing: u32) -> Result<()> {
    HELD.lock().unwrap().insert(held_key(ctx), ctx.store());
    if ctx.worker() == failing.into() { Err(Error::invalid("out of luck")) } else { Ok(()) }
}

/// Whether the store in [`HELD`] works.
fn held_works(ctx: &mut WorkerContext) -> Result<bool> {
    let held = HELD.lock().unwrap()[&held_key(ctx)].clone();
    Ok(held.add("count", 1).is_ok())
}

/// The counter in the store of this epoch.
fn marks(ctx: &mut WorkerContext) -> Result<i64> {
    ctx.store().add("count", 0)
}

/// An all-reduce. One worker fails before it, another enters it once `file` is removed.
fn late_sum(ctx: &mut WorkerContext, failing: u32, late: u32, file: String) -> Result<()> {
    if ctx.worker() == failing.into() {
        return Err(Error::invalid("out of luck"));
    }
    if ctx.worker() == late.into() {
        wait_for_removal(&file);
    }
    let sum = ctx.empty(DType::F32, [4])?;
    ctx.comm()?.all_reduce_in_place(&sum, Reduction::Sum)
}
