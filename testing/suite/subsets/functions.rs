//! Worker functions of these tests.

use std::path::Path;
use std::{fs, process};

use disco::{CommunicatorExt, Reduction, Result, Tensor, WorkerContext};
use disco_conformance::waiting::wait_until;

disco::register_function!("subsets.worker", worker);
disco::register_function!("subsets.pid", pid);
disco::register_function!("subsets.sum", sum);
disco::register_function!("subsets.wait", wait);
disco::register_function!("subsets.open", open);
disco::register_function!("subsets.fail", fail);
disco::register_function!("subsets.panic", panic);
disco::register_function!("subsets.kept", kept);
disco::register_function!("subsets.threads", threads);
disco::register_function!("subsets.descriptors", descriptors);

fn worker(ctx: &mut WorkerContext) -> Result<i64> {
    Ok(ctx.worker().index() as i64)
}

fn pid(_: &mut WorkerContext) -> Result<i64> {
    Ok(process::id().into())
}

/// Sums tensors over all workers `times` times. Element `i` of worker `w` is `scale * (w + 1) + i`.
fn sum(ctx: &mut WorkerContext, scale: i64, elements: i64, times: i64) -> Result<Tensor> {
    let mine = scale * (ctx.worker().index() as i64 + 1);
    let x = Tensor::from_slice(&(0..elements).map(|i| mine + i).collect::<Vec<_>>(), [elements])?;
    let sum = Tensor::zeros(x.dtype(), [elements])?;
    for _ in 0..times {
        ctx.comm()?.all_reduce(&x, &sum, Reduction::Sum)?;
    }
    Ok(sum)
}

/// Worker `worker` waits until the file exists.
fn wait(ctx: &mut WorkerContext, worker: u32, path: String) -> Result<()> {
    if ctx.worker() == worker.into() {
        wait_until("the file", || Path::new(&path).exists());
    }
    Ok(())
}

/// Worker `worker` makes the file.
fn open(ctx: &mut WorkerContext, worker: u32, path: String) -> Result<()> {
    if ctx.worker() == worker.into() {
        fs::write(path, "").unwrap();
    }
    Ok(())
}

fn fail(ctx: &mut WorkerContext, worker: u32) -> Result<()> {
    if ctx.worker() == worker.into() { Err(disco::Error::invalid("on purpose")) } else { Ok(()) }
}

fn panic(ctx: &mut WorkerContext, worker: u32) -> Result<()> {
    assert!(ctx.worker() != worker.into(), "on purpose");
    Ok(())
}

/// Whether the session's store has a key; sets it.
fn kept(ctx: &mut WorkerContext) -> Result<bool> {
    let had = ctx.store().get("key")?.is_some();
    ctx.store().set("key", b"value")?;
    Ok(had)
}

/// The number of threads of this process that Disco started.
fn threads(_: &mut WorkerContext) -> Result<i64> {
    let tasks = fs::read_dir("/proc/self/task").unwrap();
    let names = tasks.filter_map(|task| fs::read_to_string(task.unwrap().path().join("comm")).ok());
    Ok(names.filter(|name| name.starts_with("disco-")).count() as i64)
}

/// The number of open descriptors of this process.
fn descriptors(_: &mut WorkerContext) -> Result<i64> {
    Ok(fs::read_dir("/proc/self/fd").unwrap().count() as i64)
}
