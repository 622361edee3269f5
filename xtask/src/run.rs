//! Runs steps one after the other, and reports their times.

use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

use crate::steps::Step;
use crate::table::{Row, print};
use crate::{built, time_limit};

/// Limit of a step. The longest, which runs all test programs, takes ten minutes on two cores.
const STEP_TIMEOUT: Duration = Duration::from_secs(45 * 60);

/// Runs the steps in the root of the workspace, up to the first failure. Prints a table of their times at the end.
///
/// # Errors
/// A step fails or reaches its limit, or cargo can't be started.
pub(crate) fn all(steps: &[Step]) -> Result<()> {
    let start = Instant::now();
    let mut rows = Vec::new();
    for (passed, step) in steps.iter().enumerate() {
        println!("== {step}");
        let since = Instant::now();
        let exit = time_limit::wait(&mut cargo(step).spawn().context("cannot start cargo")?, STEP_TIMEOUT);
        let failure = match exit {
            Ok(exit) if exit.status.success() => {
                rows.push(Row { name: step.name.clone(), time: since.elapsed(), cpu: exit.cpu });
                continue;
            }
            Ok(exit) => exit.status.to_string(),
            Err(error) => error.to_string(),
        };
        let (of, seconds) = (steps.len(), start.elapsed().as_secs_f64());
        bail!("failed: {} ({failure}); {passed} of {of} steps passed before it, {seconds:.0} s in all", step.name);
    }
    print(rows);
    println!("== passed: {} steps in {:.0} s", steps.len(), start.elapsed().as_secs_f64());
    Ok(())
}

fn cargo(step: &Step) -> Command {
    let mut command = built::cargo();
    command.args(step.args.split_whitespace()).envs(step.env.iter().copied());
    command
}
