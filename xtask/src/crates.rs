//! Limits of the numbers of crates in builds of users and of benchmarks.

use std::collections::BTreeSet;

use anyhow::{Result, ensure};

use crate::built::cargo;

/// A build, cargo's arguments that select its crates, and the largest number of crates, those of this workspace included.
const LIMITS: [(&str, &str, usize); 3] = [
    ("the first command of the README", "--package disco-runtime --edges normal,build,dev", 80),
    (
        "disco-core, disco-channel and disco-local without default features",
        "--package disco-core --package disco-channel --package disco-local --no-default-features --edges normal,build",
        47,
    ),
    (
        "the benchmarks without features: none of MPI, NCCL and models",
        "--package disco-benches --edges normal,build",
        109,
    ),
];

/// Counts the crates of each build.
///
/// # Errors
/// A build has too many crates, or cargo fails.
pub(crate) fn check() -> Result<()> {
    for (build, selection, most) in LIMITS {
        let mut command = cargo();
        command.args(["tree", "--prefix", "none", "--no-dedupe", "--format", "{p}"]).args(selection.split(' '));
        let output = command.output()?;
        ensure!(output.status.success(), "cargo tree {selection}: {}", String::from_utf8_lossy(&output.stderr).trim());
        let lines = String::from_utf8(output.stdout)?;
        // Lines of several trees are separated by empty ones.
        let crates: BTreeSet<_> = lines.lines().filter(|line| !line.is_empty()).collect();
        println!("{build}: {} crates", crates.len());
        ensure!(
            crates.len() <= most,
            "{build}: at most {most} crates are permitted; `cargo tree {selection}` lists them"
        );
    }
    Ok(())
}
