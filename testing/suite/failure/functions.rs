//! Worker functions of these tests.

use std::time::Duration;

use disco::{CommunicatorExt as _, Error, WorkerContext};

use crate::gate::Gate;

#[derive(Debug, thiserror::Error)]
#[error("the step failed")]
struct StepFailed(#[source] std::num::ParseIntError);

/// Fails on one worker with an error that has a cause.
fn fail_on(ctx: &mut WorkerContext, worker: u32) -> Result<(), StepFailed> {
    if ctx.worker() == worker.into() { "x".parse::<i32>().map(drop).map_err(StepFailed) } else { Ok(()) }
}

fn add_one(_: &mut WorkerContext, x: i64) -> disco::Result<i64> {
    Ok(x + 1)
}

/// Blocks one worker until the gate opens.
fn wait_on(ctx: &mut WorkerContext, worker: u32, gate: u64) -> disco::Result<()> {
    if ctx.worker() == worker.into() {
        Gate::find(gate).wait();
    }
    Ok(())
}

/// Enters a barrier on all workers except one.
fn barrier_without(ctx: &mut WorkerContext, worker: u32) -> disco::Result<()> {
    if ctx.worker() != worker.into() {
        ctx.comm()?.barrier()?;
    }
    Ok(())
}

/// Enters a barrier; one worker waits for the gate first.
fn wait_at_barrier(ctx: &mut WorkerContext, worker: u32, gate: u64) -> disco::Result<()> {
    wait_on(ctx, worker, gate)?;
    ctx.comm()?.barrier()
}

/// Fails on all workers: on the last one first, and on the others once the session is aborted.
fn fail_in_turn(ctx: &mut WorkerContext) -> disco::Result<()> {
    if ctx.worker().index() + 1 < ctx.world().size() {
        ctx.store().wait("never", Duration::from_secs(60)).unwrap_err();
    }
    Err(Error::Invalid("no luck".into()))
}

/// Fails when the gate opens.
fn fail_late(gate: u64) -> disco::Result<()> {
    Gate::find(gate).wait();
    Err(Error::Invalid("out of memory".into()))
}

/// Fails on one worker when the gate opens, while the others wait in a barrier.
fn fail_beside_barrier(ctx: &mut WorkerContext, worker: u32, gate: u64) -> disco::Result<()> {
    if ctx.worker() == worker.into() {
        return fail_late(gate);
    }
    ctx.comm()?.barrier()
}

/// As `fail_beside_barrier`, in a communicator of the function's own: the worker drops it before it fails.
fn fail_after_a_drop(ctx: &mut WorkerContext, worker: u32, gate: u64) -> disco::Result<()> {
    let own = ctx.comm()?.split(Some(0), 0)?;
    let mut own = own.ok_or_else(|| Error::Invalid("no communicator".into()))?;
    if ctx.worker() == worker.into() {
        drop(own);
        return fail_late(gate);
    }
    own.barrier()
}

/// One worker takes this time.
fn sleep_on(ctx: &mut WorkerContext, worker: u32, milliseconds: u64) -> disco::Result<()> {
    if ctx.worker() == worker.into() {
        std::thread::sleep(Duration::from_millis(milliseconds));
    }
    Ok(())
}

fn count_up(_: &mut WorkerContext, x: usize) -> disco::Result<usize> {
    Ok(x + 1)
}

fn huge(_: &mut WorkerContext) -> disco::Result<u64> {
    Ok(1 << 63)
}

disco::register_function!("tests.sleep_on", sleep_on);
disco::register_function!("tests.count_up", count_up);
disco::register_function!("tests.huge", huge);
disco::register_function!("tests.fail_on", fail_on);
disco::register_function!("tests.add_one", add_one);
disco::register_function!("tests.wait_on", wait_on);
disco::register_function!("tests.barrier_without", barrier_without);
disco::register_function!("tests.fail_beside_barrier", fail_beside_barrier);
disco::register_function!("tests.fail_after_a_drop", fail_after_a_drop);
disco::register_function!("tests.wait_at_barrier", wait_at_barrier);
disco::register_function!("tests.fail_in_turn", fail_in_turn);
