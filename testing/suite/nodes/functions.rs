//! Worker functions of these tests.

use std::fs;
use std::time::Duration;

use disco::{CommunicatorExt, Tensor, WorkerContext};
use disco_conformance::waiting;

use crate::workers::{hang, is_me};

/// A limit that no test reaches.
const LONG: Duration = Duration::from_secs(60);

disco::register_function!("tests.parent", parent);
disco::register_function!("nodes.print", print);
disco::register_function!("tests.paint", paint);
disco::register_function!("nodes.sum", sum);
disco::register_function!("tests.stay", stay);
disco::register_function!("tests.stay_until_abort", stay_until_abort);
disco::register_function!("tests.barriers", barriers);
disco::register_function!("tests.fail_beside", fail_beside);

fn parent(_: &mut WorkerContext) -> disco::Result<i64> {
    Ok(std::os::unix::process::parent_id().into())
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

fn sum(_: &mut WorkerContext, one: Tensor, other: Tensor) -> disco::Result<u64> {
    Ok(one.to_vec::<u64>()?.iter().sum::<u64>() + other.to_vec::<u64>()?.iter().sum::<u64>())
}

/// One worker returns once `file` is removed.
fn stay(ctx: &mut WorkerContext, worker: u32, file: String) -> disco::Result<()> {
    if is_me(ctx, worker) {
        waiting::wait_until("the removal of the file", || !fs::exists(&file).unwrap());
    }
    Ok(())
}

/// One worker returns once the session is aborted.
fn stay_until_abort(ctx: &mut WorkerContext, worker: u32) -> disco::Result<()> {
    if is_me(ctx, worker) {
        ctx.store().wait("never", LONG).unwrap_err();
    }
    Ok(())
}

/// Enters `times` barriers; worker `stuck` hangs instead.
fn barriers(ctx: &mut WorkerContext, times: i64, stuck: u32) -> disco::Result<()> {
    hang(ctx, stuck)?;
    (0..times).try_for_each(|_| ctx.comm()?.barrier())
}

/// One worker fails. The others wait for it.
fn fail_beside(ctx: &mut WorkerContext, worker: u32) -> disco::Result<()> {
    if is_me(ctx, worker) { Err(disco::Error::invalid("as this test wants")) } else { ctx.comm()?.barrier() }
}
