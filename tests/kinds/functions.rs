//! What workers do in these tests.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
use std::{fs, process, thread};

use disco::{CommunicatorExt as _, DType, Error, Reduction, Result, Store, Tensor, WorkerContext, WorkerId};
use rustix::process::{Signal, getpid, kill_process};

disco::register_function!("tests.count", count);
disco::register_function!("tests.double", double);
disco::register_function!("tests.exit", exit);
disco::register_function!("tests.freeze", freeze);
disco::register_function!("tests.held_works", held_works);
disco::register_function!("tests.hold", hold);
disco::register_function!("tests.late", late);
disco::register_function!("tests.late_sum", late_sum);
disco::register_function!("tests.marks", marks);
disco::register_function!("tests.pid", pid);
disco::register_function!("tests.sleep", sleep);
disco::register_function!("tests.sum", sum);

fn count(_: &mut WorkerContext, number: i64) -> Result<i64> {
    Ok(number + 1)
}

/// Both tensors' bytes, doubled, one behind the other.
fn double(ctx: &mut WorkerContext, a: Tensor, _: String, b: Tensor) -> Result<Tensor> {
    let (a, b) = (a.bytes()?, b.bytes()?);
    let both = ctx.empty(DType::U8, [(a.len() + b.len()) as i64])?;
    let mut view = both.bytes_mut()?;
    view.iter_mut().zip(a.iter().chain(&*b)).for_each(|(to, from)| *to = from.wrapping_mul(2));
    drop(view);
    Ok(both)
}

/// One worker's process ends after a while.
fn exit(ctx: &mut WorkerContext, worker: u32, seconds: f64) -> Result<()> {
    if ctx.worker() == worker.into() {
        thread::sleep(Duration::from_secs_f64(seconds));
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

/// One worker sleeps, after it has made `file`.
fn sleep(ctx: &mut WorkerContext, worker: u32, seconds: f64, file: String) -> Result<()> {
    if ctx.worker() == worker.into() {
        fs::write(file, b"").map_err(|error| Error::invalid(error.to_string()))?;
        thread::sleep(Duration::from_secs_f64(seconds));
    }
    Ok(())
}

/// One worker stops its process, or sleeps where that is the controller's.
fn freeze(ctx: &mut WorkerContext, worker: u32, controller: i64, file: String) -> Result<()> {
    if ctx.worker() == worker.into() && i64::from(process::id()) != controller {
        fs::write(file, b"").map_err(|error| Error::invalid(error.to_string()))?;
        kill_process(getpid(), Signal::STOP).map_err(|error| Error::invalid(error.to_string()))?;
        return Ok(());
    }
    sleep(ctx, worker, 1000.0, file)
}

/// One worker fails. Another sleeps meanwhile, and then uses the store: the one that it had before, and the one that it gets
/// now. Returns what came of that.
fn late(ctx: &mut WorkerContext, failing: u32, late: u32, seconds: f64) -> Result<String> {
    if ctx.worker() == failing.into() {
        return Err(Error::invalid("out of luck"));
    }
    if ctx.worker() != late.into() {
        return Ok(String::new());
    }
    let before = ctx.store();
    thread::sleep(Duration::from_secs_f64(seconds));
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

/// Tests run at once: a worker's activity is its own.
fn holder(ctx: &WorkerContext) -> (usize, WorkerId) {
    (Arc::as_ptr(ctx.link().activity()).addr(), ctx.worker())
}

/// Keeps the store. One worker fails.
fn hold(ctx: &mut WorkerContext, failing: u32) -> Result<()> {
    HELD.lock().unwrap().insert(holder(ctx), ctx.store());
    match ctx.worker() == failing.into() {
        true => Err(Error::invalid("out of luck")),
        false => Ok(()),
    }
}

/// Whether the store that the worker holds works.
fn held_works(ctx: &mut WorkerContext) -> Result<bool> {
    let held = HELD.lock().unwrap()[&holder(ctx)].clone();
    Ok(held.add("count", 1).is_ok())
}

/// How often workers of this epoch were counted.
fn marks(ctx: &mut WorkerContext) -> Result<i64> {
    ctx.store().add("count", 0)
}

/// A sum over all workers. One fails before, another comes late.
fn late_sum(ctx: &mut WorkerContext, failing: u32, late: u32, seconds: f64) -> Result<()> {
    if ctx.worker() == failing.into() {
        return Err(Error::invalid("out of luck"));
    }
    if ctx.worker() == late.into() {
        thread::sleep(Duration::from_secs_f64(seconds));
    }
    let sum = ctx.empty(DType::F32, [4])?;
    ctx.comm()?.all_reduce_in_place(&sum, Reduction::Sum)
}
