//! `cargo xtask compare`: calls and syncs beside those of an earlier commit.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result, ensure};
use clap::Args;
use serde_json::Value;

use crate::built::{self, root};
use crate::fast::git;

/// Options of `cargo xtask compare`.
#[derive(Args, Debug)]
pub(crate) struct Compare {
    /// The earlier commit; the first comparison builds its `disco` in `target/compare`
    commit: String,
    /// Number of process starts of each program, in turn
    #[arg(long, default_value_t = 30, value_parser = clap::value_parser!(u16).range(2..))]
    pairs: u16,
    /// Numbers of workers
    #[arg(long, value_delimiter = ',', default_values_t = [1, 2, 8])]
    workers: Vec<usize>,
    /// Rounds of `disco ping`
    #[arg(long, default_value_t = 500)]
    rounds: u32,
}

/// The name of a figure of `disco ping --json`, and where it is.
const FIGURES: [(&str, &str); 5] = [
    ("call, 0 arguments, µs", "/calls_0_args/per_call_us"),
    ("call, 4 arguments, µs", "/calls_4_args/per_call_us"),
    ("sync of one worker, µs", "/sync_one/median_us"),
    ("sync of all workers, µs", "/sync_all/median_us"),
    ("start-up, ms", "/ready_ms"),
];

impl Compare {
    /// Builds `disco` of the commit and of now, starts both in turn, and prints for each figure the medians, the smallest values,
    /// and the median of the ratios of the pairs with its 95 % interval.
    ///
    /// # Errors
    /// Git does not know the commit, or a program can't be built or fails.
    pub(crate) fn run(&self) -> Result<()> {
        let commit = git(&["rev-parse", "--verify", "--short", &format!("{}^{{commit}}", self.commit)])?;
        let worktree = root().join("target/compare").join(commit.trim());
        if !worktree.exists() {
            git(&["worktree", "add", "--detach", &worktree.display().to_string(), commit.trim()])?;
        }
        let programs = [disco(&worktree)?, disco(&root())?];
        println!("{} pairs, {} and now", self.pairs, commit.trim());
        println!("{:38}  median     now  smallest     now  now / old of the pairs", "");
        for kind in ["threads", "processes", "nodes"] {
            // Nodes are two.
            for workers in self.workers.iter().filter(|workers| kind != "nodes" || *workers % 2 == 0) {
                let pings = self.pings(&programs, kind, *workers)?;
                for (name, place) in FIGURES {
                    let values = |ping: &Value| ping.pointer(place).and_then(Value::as_f64).unwrap_or(f64::NAN);
                    let [old, new] = pings.each_ref().map(|pings| pings.iter().map(values).collect::<Vec<_>>());
                    let [low, ratio, high] = ratio(&old, &new);
                    let [(old, old_least), (new, new_least)] = [old, new].map(median_and_least);
                    print!(
                        "{kind:<9} {workers:>3}  {name:<24}{old:>7.2} {new:>7.2}  {old_least:>8.2} {new_least:>7.2}  "
                    );
                    println!("{ratio:.3} [{low:.3}, {high:.3}]");
                }
            }
        }
        Ok(())
    }

    /// Starts the programs in turn. The first of a pair is last in the next, so that neither is always the first.
    fn pings(&self, programs: &[PathBuf; 2], kind: &str, workers: usize) -> Result<[Vec<Value>; 2]> {
        let mut pings = [const { Vec::new() }; 2];
        for start in 0..2 * usize::from(self.pairs) {
            let of = (start + start / 2) % 2;
            let mut ping = Command::new(&programs[of]);
            ping.args(["ping", "--json", "--session", kind, "--workers", &workers.to_string()]);
            let output = ping.args(["--rounds", &self.rounds.to_string()]).output()?;
            ensure!(output.status.success(), "{ping:?}: {}", String::from_utf8_lossy(&output.stderr).trim());
            pings[of].push(serde_json::from_slice(&output.stdout)?);
        }
        Ok(pings)
    }
}

/// The command `disco` of the workspace at `root`.
fn disco(root: &Path) -> Result<PathBuf> {
    let mut command = built::cargo();
    command.current_dir(root);
    let built = built::build_with(command, "build --profile bench --package disco-runtime-cli --bin disco")?;
    let found = built.into_iter().find(|built| built.kind == "bin" && built.name == "disco");
    Ok(found.context("cargo has built no program disco")?.file)
}

/// The median of the ratios of the pairs, between the ends of its 95 % interval, which is that of the order of the ratios: a
/// hypervisor that moves a processor meanwhile changes some ratios by a factor of 3.
fn ratio(old: &[f64], new: &[f64]) -> [f64; 3] {
    let mut ratios: Vec<_> = old.iter().zip(new).map(|(old, new)| new / old).collect();
    ratios.sort_unstable_by(f64::total_cmp);
    let (middle, half) = (ratios.len() as f64 / 2.0, 0.98 * (ratios.len() as f64).sqrt());
    let last = ratios.len().saturating_sub(1);
    let at = |place: f64| ratios.get((place.max(0.0) as usize).min(last)).copied().unwrap_or(f64::NAN);
    [at(middle - half), at(middle), at((middle + half).ceil())]
}

fn median_and_least(mut values: Vec<f64>) -> (f64, f64) {
    values.sort_unstable_by(f64::total_cmp);
    let at = |index: usize| values.get(index).copied().unwrap_or(f64::NAN);
    (at(values.len() / 2), at(0))
}
