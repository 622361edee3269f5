//! `cargo xtask peers`: the same collectives by Disco and MPI libraries, in turn on this machine.
//!
//! The libraries are fetched by hash and driven by `ranks.c` through the blocking functions of MPI. Below each table stand its date,
//! machine and versions.

mod collectives;
mod commit;
mod programs;
mod tables;

use std::fs;
use std::process::Command;
use std::thread::available_parallelism;

use anyhow::Result;
use clap::Args;

use self::programs::Programs;

/// Options of `cargo xtask peers`.
#[derive(Args, Debug)]
pub(crate) struct Peers {
    /// Only compare calls and syncs with those of this commit: with as many workers as processors, and with four times as
    /// many. The first comparison builds the commit's `disco` in `target/peers`
    #[arg(long, value_name = "COMMIT", conflicts_with_all = ["operations", "ranks"])]
    commit: Option<String>,
    /// Measure once and shorter, in about a minute
    #[arg(long)]
    quick: bool,
    /// Number of process starts of each program, in turn [default: 3, or 1 with --quick; with --commit 9, or 3]
    #[arg(long, value_parser = clap::value_parser!(u16).range(1..))]
    starts: Option<u16>,
    /// Collectives to measure [default: all]
    #[arg(long, value_delimiter = ',')]
    operations: Vec<String>,
    /// Numbers of ranks of collectives
    #[arg(long, value_delimiter = ',', default_values_t = [2, 4])]
    ranks: Vec<usize>,
}

impl Peers {
    /// Measures, and prints the tables.
    ///
    /// # Errors
    /// Our programs can't be built or fail. A peer that fails is left out.
    pub(crate) fn run(self) -> Result<()> {
        if let Some(commit) = &self.commit {
            // Starts differ by half, because the system places threads in other ways.
            let starts = self.starts.map_or(if self.quick { 3 } else { 9 }, usize::from);
            return commit::compare(commit, starts, if self.quick { "500" } else { "2000" });
        }
        let programs = Programs::build()?;
        let starts = self.starts.map_or(if self.quick { 1 } else { 3 }, usize::from);
        let mut operations: Vec<&str> = self.operations.iter().map(String::as_str).collect();
        if operations.is_empty() {
            operations = collectives::OPERATIONS.to_vec();
        }
        self.ranks.iter().try_for_each(|&ranks| collectives::measure(&programs, &operations, ranks, starts, self.quick))
    }
}

/// A line with the date, the machine, the versions of Disco and of its `peers`, and the smallest and the largest of the latencies
/// of a cache line in ns.
fn conditions(peers: &[String], placement: &[u64]) -> Result<String> {
    let cpu = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let cpu = cpu.lines().find_map(|line| line.strip_prefix("model name")?.split_once(": ")).unwrap_or_default();
    let date = programs::output(Command::new("date").args(["--utc", "+%-d %B %Y"]).env("LC_ALL", "C"))?;
    let kernel = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    let [low, high] = [placement.iter().min(), placement.iter().max()].map(|ns| ns.copied().unwrap_or_default());
    Ok(format!(
        "{}, {} CPUs of {}, Linux {}. Disco {}, {}. A cache line took {low} to {high} ns from one thread to another.\n",
        date.trim(),
        available_parallelism()?,
        cpu.1,
        kernel.trim(),
        env!("CARGO_PKG_VERSION"),
        peers.join(", "),
    ))
}
