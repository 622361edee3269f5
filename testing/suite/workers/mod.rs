//! Worker functions of sessions of processes and of sessions of nodes.

use std::time::{Duration, Instant};
use std::{env, process, thread};

use disco::{Error, LaneSession, WorkerContext, block_on};
use disco_conformance::waiting;
use rustix::process::{Pid, Signal, kill_process};

disco::register_function!("tests.pid", pid);
disco::register_function!("tests.variable", variable);
disco::register_function!("tests.length", length);
disco::register_function!("tests.bytes", bytes);
disco::register_function!("tests.panic", panic);
disco::register_function!("tests.hang", hang);
disco::register_function!("tests.store", store);

/// No worker has this number.
pub(crate) const NOBODY: u32 = u32::MAX;

pub(crate) fn is_me(ctx: &WorkerContext, worker: u32) -> bool {
    ctx.worker() == worker.into()
}

fn pid(_: &mut WorkerContext) -> disco::Result<i64> {
    Ok(process::id().into())
}

fn variable(_: &mut WorkerContext, name: String) -> disco::Result<Option<String>> {
    Ok(env::var(name).ok())
}

fn length(_: &mut WorkerContext, text: String) -> disco::Result<i64> {
    Ok(text.len() as i64)
}

fn bytes(_: &mut WorkerContext, count: i64) -> disco::Result<Vec<u8>> {
    Ok(vec![7; count as usize])
}

fn panic(ctx: &mut WorkerContext, worker: u32) -> disco::Result<()> {
    assert!(!is_me(ctx, worker), "on purpose");
    Ok(())
}

/// One worker does not return.
pub(crate) fn hang(ctx: &mut WorkerContext, worker: u32) -> disco::Result<()> {
    if is_me(ctx, worker) {
        waiting::hang();
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
    let start = Instant::now();
    let late = store.wait("never", Duration::from_millis(5)).unwrap_err().to_string();
    assert_eq!(late, "store: wait for `never`: no end after 5ms: nobody has set it");
    assert!(start.elapsed() < deadline);
    let leader = store.compare_and_set(&key("leader"), None, &[ctx.worker().index() as u8])?;
    Ok(leader[0].into())
}

/// Kills a process after a time. Tests repeat it with other times, so that the moment of the kill differs.
pub(crate) fn kill_after(time: Duration, pid: Pid) {
    thread::sleep(time);
    kill_process(pid, Signal::KILL).unwrap();
}

/// Waits for the loss of a worker.
pub(crate) fn lost(session: &LaneSession) -> Error {
    loop {
        match block_on(session.sync_all()) {
            Err(error @ Error::Lost(_)) => return error,
            other => other.unwrap(),
        }
    }
}

/// The lines of an output, sorted.
pub(crate) fn sorted_lines(output: Vec<u8>) -> Vec<String> {
    let mut lines: Vec<String> = String::from_utf8(output).unwrap().lines().map(str::to_owned).collect();
    lines.sort();
    lines
}
