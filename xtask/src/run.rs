//! Runs steps one after the other, and reports their times.

use std::process::{Command, ExitStatus};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

use crate::steps::Step;
use crate::{built, libraries, time_limit};

/// Limit of a step. The longest, which runs all test programs, takes ten minutes on two cores.
const STEP_TIMEOUT: Duration = Duration::from_secs(45 * 60);

/// Number of the longest steps that are listed at the end.
const LISTED: usize = 5;

/// Runs the steps in the root of the workspace, up to the first failure.
///
/// # Errors
/// A step fails or reaches its limit, or cargo can't be started.
pub(crate) fn all(steps: &[Step]) -> Result<()> {
    let start = Instant::now();
    let mut times = Vec::new();
    for (passed, step) in steps.iter().enumerate() {
        println!("== {step}");
        let since = Instant::now();
        let status = time_limit::wait(&mut cargo(step).spawn().context("cannot start cargo")?, STEP_TIMEOUT);
        times.push((since.elapsed(), &step.name));
        if !status.as_ref().is_ok_and(ExitStatus::success) {
            let status = status.map_or_else(|error| error.to_string(), |status| status.to_string());
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
