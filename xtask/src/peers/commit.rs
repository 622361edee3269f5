//! The control plane beside that of an earlier commit, also with more workers than processors.

use std::path::PathBuf;
use std::process::Command;
use std::thread::available_parallelism;

use anyhow::Result;

use super::calls::{METRICS, Metric, Ping};
use super::programs;
use super::tables::spread;
use crate::built::root;
use crate::fast::git;

const NO_ARGUMENTS: Metric = ("call without arguments", "µs", |ping| ping.calls_0_args.per_call_us);

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
            for (name, unit, value) in METRICS.iter().chain([&NO_ARGUMENTS]) {
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
