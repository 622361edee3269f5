//! Worker functions of these tests.

use std::time::Duration;
use std::{fs, process};

use disco::{CommunicatorExt, Tensor, WorkerContext};
use disco_conformance::waiting;

/// A limit that no test reaches.
const LONG: Duration = Duration::from_secs(60);

disco::register_function!("tests.pid", pid);
disco::register_function!("tests.parent", parent);
disco::register_function!("tests.print", print);
disco::register_function!("tests.paint", paint);
disco::register_function!("tests.variable", variable);
disco::register_function!("tests.length", length);
disco::register_function!("tests.bytes", bytes);
disco::register_function!("tests.sum", sum);
disco::register_function!("tests.panic", panic);
disco::register_function!("tests.hang", hang);
disco::register_function!("tests.stay", stay);
disco::register_function!("tests.store", store);
disco::register_function!("tests.barriers", barriers);
disco::register_function!("tests.barrier_after_abort", barrier_after_abort);
disco::register_function!("tests.fail_beside", fail_beside);

fn pid(_: &mut WorkerContext) -> disco::Result<i64> {
    Ok(process::id().into())
}

fn parent(_: &mut WorkerContext) -> disco::Result<i64> {
    Ok(std::os::unix::process::parent_id().into())
}

fn is_me(ctx: &WorkerContext, worker: u32) -> bool {
    ctx.worker() == worker.into()
}

fn print(ctx: &mut WorkerContext) -> disco::Result<()> {
    // Worker 0 is a thread of the program, so its output has no prefix.
    if !is_me(ctx, 0) {
        print!("output of {}\nlast", ctx.worker());
        eprintln!("error of {}", ctx.worker());
    }
    Ok(())
}

/// Prints escape sequences that change the color and the title of a terminal, and ring its bell.
fn paint(ctx: &mut WorkerContext) -> disco::Result<()> {
    if !is_me(ctx, 0) {
        println!("\x1b[31mred\u{9b}0m \x1b]0;title\x07");
    }
    Ok(())
}

fn variable(_: &mut WorkerContext, name: String) -> disco::Result<Option<String>> {
    Ok(std::env::var(name).ok())
}

fn length(_: &mut WorkerContext, text: String) -> disco::Result<i64> {
    Ok(text.len() as i64)
}

fn sum(_: &mut WorkerContext, one: Tensor, other: Tensor) -> disco::Result<u64> {
    Ok(one.to_vec::<u64>()?.iter().sum::<u64>() + other.to_vec::<u64>()?.iter().sum::<u64>())
}

fn bytes(_: &mut WorkerContext, count: i64) -> disco::Result<Vec<u8>> {
    Ok(vec![7; count as usize])
}

fn panic(ctx: &mut WorkerContext, worker: u32) -> disco::Result<()> {
    assert!(!is_me(ctx, worker), "on purpose");
    Ok(())
}

/// One worker does not return.
fn hang(ctx: &mut WorkerContext, worker: u32) -> disco::Result<()> {
    if is_me(ctx, worker) {
        waiting::hang();
    }
    Ok(())
}

/// One worker returns once `file` is removed.
fn stay(ctx: &mut WorkerContext, worker: u32, file: String) -> disco::Result<()> {
    if is_me(ctx, worker) {
        waiting::wait_until("the removal of the file", || !fs::exists(&file).unwrap());
    }
    Ok(())
}

/// Synchronizes all workers through the store, and returns the worker that was elected leader.
fn store(ctx: &mut WorkerContext, number: i64) -> disco::Result<i64> {
    let (store, deadline) = (ctx.store(), Duration::from_secs(20));
    let key = |what: &str| format!("{what} {number}");
    if store.add(&key("count"), 1)? == ctx.world().size() as i64 {
        store.set(&key("all"), b"here")?;
    }
    assert_eq!(store.wait(&key("all"), deadline)?, b"here");
    assert_eq!(store.get("absent")?, None);
    let late = store.wait("never", Duration::from_millis(5)).unwrap_err().to_string();
    assert_eq!(late, "store: wait for `never`: no end after 5ms: nobody has set it");
    let leader = store.compare_and_set(&key("leader"), None, &[ctx.worker().index() as u8])?;
    Ok(leader[0].into())
}

/// No worker has this number.
pub(crate) const NOBODY: u32 = u32::MAX;

/// Enters `times` barriers; worker `stuck` hangs instead.
fn barriers(ctx: &mut WorkerContext, times: i64, stuck: u32) -> disco::Result<()> {
    hang(ctx, stuck)?;
    (0..times).try_for_each(|_| ctx.comm()?.barrier())
}

/// Enters a barrier; worker `late` waits until the session is aborted first.
fn barrier_after_abort(ctx: &mut WorkerContext, late: u32) -> disco::Result<()> {
    if is_me(ctx, late) {
        ctx.store().wait("never", LONG).unwrap_err();
    }
    ctx.comm()?.barrier()
}

/// One worker fails. The others wait for it.
fn fail_beside(ctx: &mut WorkerContext, worker: u32) -> disco::Result<()> {
    if is_me(ctx, worker) { Err(disco::Error::invalid("as this test wants")) } else { ctx.comm()?.barrier() }
}
