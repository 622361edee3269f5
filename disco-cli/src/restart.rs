//! `disco run --restart`: starts the program again after it has failed.

use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::bail;

use crate::log;
use crate::supervisor::{self, Backoff, Supervisor};

/// Environment variable with the number of times that the program was started before.
const ATTEMPT: &str = "DISCO_RESTARTS";
/// Longest pause after a failure.
const MAX_PAUSE: Duration = Duration::from_secs(60);
/// A program that has run for longer than this resets the pause.
const LONG_RUN: Duration = Duration::from_secs(600);

/// Runs this command without `--restart`, and again up to `restarts` times if its program fails. Returns the exit status of
/// a program that succeeds or that a signal to this process has ended.
///
/// # Errors
/// The program has failed each time; the error lists each exit status. The process can't be started.
pub(crate) fn run(restarts: u32) -> anyhow::Result<ExitCode> {
    let mut command = supervisor::command("--restart", true)?;
    let supervisor = Supervisor::start()?;
    let (mut backoff, mut failures) = (Backoff::new(MAX_PAUSE, LONG_RUN), Vec::new());
    for attempt in 0..=restarts {
        let begun = Instant::now();
        let status = supervisor.run(command.env(ATTEMPT, attempt.to_string()))?;
        if status.success() || supervisor.is_ended() {
            return Ok(supervisor::code(status));
        }
        let ran = begun.elapsed();
        let failure = format!("{status} after {:.1} s", ran.as_secs_f64());
        let pause = backoff.after_failure(ran);
        if attempt < restarts {
            let next = format!("it starts again in {pause:?} ({} of {restarts})", attempt + 1);
            log::tell("disco", &format!("the program failed: {failure}; {next}"));
            supervisor.pause(pause);
            if supervisor.is_ended() {
                return Ok(supervisor::code(status));
            }
        }
        failures.push(failure);
    }
    let list: String = failures.iter().enumerate().map(|(at, failure)| format!("\n{}. {failure}", at + 1)).collect();
    bail!("the program failed {} times, and --restart is {restarts}:{list}", failures.len())
}
