//! Runs steps one after the other, and reports their times.

use std::process::Command;
use std::time::Instant;

use anyhow::{Context, Result, bail};

use crate::steps::Step;
use crate::{built, libraries};

/// Number of the longest steps that are listed at the end.
const LISTED: usize = 5;

/// Runs the steps in the root of the workspace, up to the first failure.
///
/// # Errors
/// A step fails, or cargo can't be started.
pub(crate) fn all(steps: &[Step]) -> Result<()> {
    let start = Instant::now();
    let mut times = Vec::new();
    for (passed, step) in steps.iter().enumerate() {
        println!("== {step}");
        let since = Instant::now();
        let status = cargo(step).status().context("cannot start cargo")?;
        times.push((since.elapsed(), &step.name));
        if !status.success() {
            let (of, seconds) = (steps.len(), start.elapsed().as_secs_f64());
            bail!("failed: {} ({status}); {passed} of {of} steps passed before it, {seconds:.0} s in all", step.name);
        }
    }
    times.sort_unstable();
    let longest = times.iter().rev().take(LISTED).map(|(time, name)| format!("{name} {:.0} s", time.as_secs_f64()));
    let longest = longest.collect::<Vec<_>>().join("; ");
    println!("== passed: {} steps in {:.0} s, of which {longest}", steps.len(), start.elapsed().as_secs_f64());
    Ok(())
}

fn cargo(step: &Step) -> Command {
    let mut command = built::cargo();
    command.env(libraries::CACHE_VARIABLE, libraries::cache());
    command.args(step.args.split_whitespace()).envs(step.env.iter().copied());
    command
}
