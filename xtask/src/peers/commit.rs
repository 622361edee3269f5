//! The control plane beside that of an earlier commit, also with more workers than processors.

use std::path::PathBuf;
use std::process::Command;
use std::thread::available_parallelism;

use anyhow::Result;
use serde::Deserialize;

use super::programs;
use super::tables::spread;
use crate::built::root;
use crate::fast::git;

/// The output of `disco ping --json`.
#[derive(Debug, Deserialize)]
struct Ping {
    ready_ms: f64,
    sync_one: Latency,
    sync_all: Latency,
    calls_0_args: Rate,
    calls_4_args: Rate,
}

#[derive(Debug, Deserialize)]
struct Latency {
    median_us: f64,
}

#[derive(Debug, Deserialize)]
struct Rate {
    per_call_us: f64,
}

/// A figure: its name, its unit, and its value.
type Metric = (&'static str, &'static str, fn(&Ping) -> f64);
const METRICS: [Metric; 5] = [
    ("call without arguments", "µs", |ping| ping.calls_0_args.per_call_us),
    ("call with 4 arguments", "µs", |ping| ping.calls_4_args.per_call_us),
    ("sync of one worker", "µs", |ping| ping.sync_one.median_us),
    ("sync of all workers", "µs", |ping| ping.sync_all.median_us),
    ("start-up", "ms", |ping| ping.ready_ms),
];

/// Builds `disco` of `commit`, in a worktree that stays in `target/peers`, and prints medians and smallest figures
/// of `starts` process starts of both programs in turn.
///
/// # Errors
/// Git does not know the commit, or a program can't be built or fails.
pub(crate) fn compare(commit: &str, starts: usize, rounds: &str) -> Result<()> {
    let commit = git(&["rev-parse", "--verify", "--short", &format!("{commit}^{{commit}}")])?;
    let worktree = root().join("target/peers").join(commit.trim());
    if !worktree.exists() {
        git(&["worktree", "add", "--detach", &worktree.display().to_string(), commit.trim()])?;
    }
    let disco = [programs::disco(&worktree)?, programs::disco(&root())?];
    let processors = available_parallelism()?.get();
    println!("{starts} starts of each program on {processors} processors, {} and now", commit.trim());
    println!("{:37}  median      now  ratio   smallest      now  ratio", "");
    for kind in ["threads", "processes", "nodes"] {
        for workers in [processors, 4 * processors] {
            // Nodes are two.
            let workers = if kind == "nodes" { workers.next_multiple_of(2) } else { workers };
            let pings =
                in_turn(&disco, &["--session", kind, "--workers", &workers.to_string(), "--rounds", rounds], starts)?;
            for (name, unit, value) in &METRICS {
                let [old, new] = pings.each_ref().map(|pings| spread(pings.iter().map(value)).unwrap_or_default());
                print!("{kind:<9} {workers:>4}  {name:<22}");
                for (old, new) in old.iter().zip(new).take(2) {
                    print!("{old:>8.2} {new:>8.2}  {:>5.2}   ", new / old);
                }
                println!("{unit}");
            }
        }
    }
    Ok(())
}

/// Starts the programs in turn. The first of a pair is last in the next, so that neither is always the first.
fn in_turn(disco: &[PathBuf; 2], args: &[&str], starts: usize) -> Result<[Vec<Ping>; 2]> {
    let mut pings = [const { Vec::new() }; 2];
    for start in 0..2 * starts {
        let of = (start + start / 2) % 2;
        pings[of].push(programs::json(Command::new(&disco[of]).args(["ping", "--json"]).args(args))?);
    }
    Ok(pings)
}
