//! Worker functions.

use std::thread;
use std::time::Duration;

use disco::{Result, Tensor, WorkerContext, register_function};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

register_function!("tests.none", none);
register_function!("tests.fill", fill);
register_function!("tests.large", large);
register_function!("tests.process", process);
register_function!("tests.limit_files", limit_files);
register_function!("tests.delay", delay);
register_function!("tests.pattern", pattern);
register_function!("tests.refill", refill);
register_function!("tests.is_pattern", is_pattern);

fn none(_: &mut WorkerContext) -> Result<()> {
    Ok(())
}

fn fill(_: &mut WorkerContext, tensor: Tensor, number: i32) -> Result<()> {
    tensor.view_mut::<i32>()?.fill(number);
    Ok(())
}

/// A tensor of its own on each worker, with the worker's number in all elements.
fn large(ctx: &mut WorkerContext, elements: usize) -> Result<Tensor> {
    let tensor = ctx.empty(disco::DType::I32, elements)?;
    tensor.view_mut::<i32>()?.fill(ctx.worker().index() as i32);
    Ok(tensor)
}

fn process(_: &mut WorkerContext) -> Result<i64> {
    Ok(std::process::id().into())
}

/// Limits the size of the files that worker 1's process writes.
fn limit_files(ctx: &mut WorkerContext, bytes: u64) -> Result<()> {
    if ctx.worker().index() != 1 {
        return Ok(());
    }
    let failed = |error: std::io::Error| disco::Error::system("limit the size of files", error);
    let maximum = getrlimit(Resource::Fsize).maximum;
    let limit = Rlimit { current: Some(maximum.map_or(bytes, |maximum| maximum.min(bytes))), maximum };
    setrlimit(Resource::Fsize, limit).map_err(|error| failed(error.into()))
}

/// Waits for so many milliseconds on each worker.
fn delay(ctx: &mut WorkerContext, milliseconds: disco::Shape) -> Result<()> {
    thread::sleep(Duration::from_millis(milliseconds[ctx.worker().index()] as u64));
    Ok(())
}

/// The elements of [`pattern`].
fn elements(ctx: &WorkerContext, count: usize, seed: i32, own: bool) -> impl Iterator<Item = i32> + use<> {
    let first = seed.wrapping_mul(1_000_003) + if own { 7_919 * ctx.worker().index() as i32 } else { 0 };
    (0..count as i32).map(move |index| index.wrapping_mul(0x09e3_779b).wrapping_add(first))
}

/// A tensor whose elements follow from the seed; with `own` also from the worker.
fn pattern(ctx: &mut WorkerContext, count: usize, seed: i32, own: bool) -> Result<Tensor> {
    Tensor::from_vec(elements(ctx, count, seed, own).collect::<Vec<i32>>(), count)
}

fn refill(ctx: &mut WorkerContext, tensor: Tensor, seed: i32, own: bool) -> Result<()> {
    let elements = elements(ctx, tensor.elements(), seed, own);
    tensor.view_mut::<i32>()?.iter_mut().zip(elements).for_each(|(element, new)| *element = new);
    Ok(())
}

/// Whether a tensor has the elements of [`pattern`].
fn is_pattern(ctx: &mut WorkerContext, tensor: Tensor, count: usize, seed: i32, own: bool) -> Result<bool> {
    Ok(tensor.view::<i32>()?.iter().copied().eq(elements(ctx, count, seed, own)))
}
