//! Costs of Disco and its peers for other programs: CPU time without work, and the rate of a program that computes.

use std::fs;
use std::hint::black_box;
use std::process::Command;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::Result;
use serde::Deserialize;

use super::data::{self, Beside, Data, Idle};
use super::programs::{self, Programs, Running};
use crate::time_limit::descendants;

const WORKERS: &str = "8";
/// Time between the start of sessions and the measurement.
const SETTLE: Duration = Duration::from_secs(2);

/// Measures the CPU time of idle sessions, and that of a rank that waits for another.
///
/// # Errors
/// Disco fails. A failure of a peer is printed.
pub(crate) fn idle(data: &mut Data, programs: &Programs, seconds: u32) -> Result<()> {
    eprintln!("== idle sessions, {seconds} s");
    let mut sessions = Vec::new();
    for kind in ["threads", "processes", "nodes"] {
        let job = format!("8 idle workers: {kind}");
        let command = |program| {
            let mut command = Command::new(program);
            command.args(["idle", kind, WORKERS, "0"]);
            command
        };
        sessions.push((job.clone(), data::DISCO, command(&programs.ours)));
        sessions.extend(programs.tvm.as_ref().map(|tvm| (job, data::TVM, command(tvm))));
    }
    cpu_time(data, sessions, seconds)?;
    eprintln!("== a waiting rank");
    let job = "a rank waits for a late rank";
    let mut command = Command::new(&programs.ours);
    cpu_time(data, vec![(job.into(), data::DISCO, with(&mut command, ["wait", "processes", "2", "8"]))], 4)?;
    for (mpi, program) in &programs.mpis {
        let mut command = mpi.command(program, 2, &[]);
        if let Err(error) = cpu_time(data, vec![(job.into(), mpi.name, with(&mut command, ["idle", "8"]))], 4) {
            eprintln!("== {}: {error:#}", mpi.name);
        }
    }
    Ok(())
}

/// The command with arguments, moved out.
fn with<const N: usize>(command: &mut Command, args: [&str; N]) -> Command {
    command.args(args);
    std::mem::replace(command, Command::new("true"))
}

/// Runs all jobs at once and notes the CPU time of each, with that of its child processes.
fn cpu_time(data: &mut Data, jobs: Vec<(String, &str, Command)>, seconds: u32) -> Result<()> {
    let mut running = Vec::new();
    for (job, system, mut command) in jobs {
        let mut started = Running::start(&mut command)?;
        started.ready()?;
        running.push((job, system, started));
    }
    thread::sleep(SETTLE);
    let now = |running: &Running| {
        let processes = std::iter::once(running.child.id()).chain(descendants(running.child.id()));
        processes.map(nanoseconds).sum::<u64>()
    };
    let before: Vec<u64> = running.iter().map(|(_, _, it)| now(it)).collect();
    thread::sleep(Duration::from_secs(seconds.into()));
    for ((job, system, running), before) in running.iter().zip(before) {
        let percent = now(running).saturating_sub(before) as f64 / 1e7 / f64::from(seconds);
        data.idle.retain(|it| it.job != *job || it.system != *system);
        data.idle.push(Idle { job: job.clone(), system: (*system).into(), percent });
    }
    for (_, _, mut running) in running {
        // A TVM session does not end its nodes.
        let children = descendants(running.child.id());
        running.end()?;
        crate::time_limit::kill(&children);
    }
    Ok(())
}

/// CPU time of all threads of a process.
fn nanoseconds(process: u32) -> u64 {
    let tasks = fs::read_dir(format!("/proc/{process}/task")).into_iter().flatten().flatten();
    let time = |folder: fs::DirEntry| {
        fs::read_to_string(folder.path().join("schedstat")).ok()?.split(' ').next()?.parse::<u64>().ok()
    };
    tasks.filter_map(time).sum()
}

#[derive(Deserialize)]
struct PerSecond {
    per_second: f64,
}

/// Measures the rates of a computing program and of each system beside it.
///
/// # Errors
/// Disco fails. A failure of a peer is printed.
pub(crate) fn beside(data: &mut Data, programs: &Programs, seconds: u32) -> Result<()> {
    let alone = compute(seconds);
    let job = "sync of 2 threads";
    syncs(data, programs, job, seconds, alone)?;
    let job = "all_reduce of 8 B, 2 processes";
    let time = (seconds + 1).to_string();
    let ours = || with(&mut Command::new(&programs.ours), ["all_reduces", "processes", "2", &time]);
    pair(data, job, data::DISCO, &ours, seconds, alone)?;
    for (mpi, program) in &programs.mpis {
        let theirs = || with(&mut mpi.command(program, 2, &[]), ["loop", &time]);
        if let Err(error) = pair(data, job, mpi.name, &theirs, seconds, alone) {
            eprintln!("== {}: {error:#}", mpi.name);
        }
    }
    Ok(())
}

fn syncs(data: &mut Data, programs: &Programs, job: &str, seconds: u32, alone: f64) -> Result<()> {
    let time = (seconds + 1).to_string();
    let ours = || with(&mut Command::new(&programs.ours), ["syncs", "threads", "2", &time]);
    pair(data, job, data::DISCO, &ours, seconds, alone)?;
    if let Some(tvm) = &programs.tvm {
        let theirs = || with(&mut Command::new(tvm), ["syncs", "threads", "2", &time]);
        pair(data, job, data::TVM, &theirs, seconds, alone)?;
    }
    Ok(())
}

/// Runs a system without and with the computing program.
fn pair(
    data: &mut Data,
    job: &str,
    system: &str,
    command: &dyn Fn() -> Command,
    seconds: u32,
    compute_alone: f64,
) -> Result<()> {
    eprintln!("== beside a computing program: {job}, {system}");
    let run = |is_beside: bool| -> Result<(f64, f64)> {
        let mut running = Running::start(&mut command())?;
        running.ready()?;
        let computed = if is_beside { compute(seconds) } else { 0.0 };
        let rate: PerSecond = programs::last_json(&running.end()?)?;
        Ok((rate.per_second, computed))
    };
    let (alone, _) = run(false)?;
    let (beside, computed) = run(true)?;
    data.beside.retain(|it| it.job != job || it.system != system);
    let compute_percent = computed / compute_alone * 100.0;
    data.beside.push(Beside { job: job.into(), system: system.into(), alone, beside, compute_percent });
    Ok(())
}

/// Computes on all CPUs. Returns the number of steps per second.
fn compute(seconds: u32) -> f64 {
    let (is_over, total) = (AtomicBool::new(false), AtomicU64::new(0));
    let start = Instant::now();
    thread::scope(|scope| {
        for _ in 0..thread::available_parallelism().map_or(1, usize::from) {
            scope.spawn(|| {
                let (mut steps, mut x) = (0u64, 1u64);
                while !is_over.load(Ordering::Relaxed) {
                    for _ in 0..1000 {
                        x = black_box(x.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1));
                    }
                    steps += 1;
                }
                total.fetch_add(steps, Ordering::Relaxed);
            });
        }
        thread::sleep(Duration::from_secs(seconds.into()));
        is_over.store(true, Ordering::Relaxed);
    });
    total.into_inner() as f64 / start.elapsed().as_secs_f64()
}
