//! `disco run --restart`: starts the program again after it has failed.

use std::process::{Child, ExitCode, ExitStatus};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail};
use rustix::process::{Pid, Signal, kill_process};
use signal_hook::consts::{SIGCHLD, SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

use crate::log;
use crate::supervisor::{self, Backoff};

/// Environment variable with the number of times that the program was started before.
const ATTEMPT: &str = "DISCO_RESTARTS";
/// Longest pause after a failure.
const MAX_PAUSE: Duration = Duration::from_secs(60);
/// A program that has run for longer than this resets the pause.
const LONG_RUN: Duration = Duration::from_secs(600);
/// Interval of checks whether a signal ends a pause.
const POLL_INTERVAL: Duration = Duration::from_millis(20);

/// Runs this command without `--restart`, and again up to `restarts` times if its program fails. Returns the exit status of
/// a program that succeeds or that a signal to this process has ended. SIGTERM and SIGHUP are passed on to the program;
/// SIGINT is not, since a terminal sends it to both.
///
/// # Errors
/// The program has failed each time; the error lists each exit status. The process can't be started.
pub(crate) fn run(restarts: u32) -> anyhow::Result<ExitCode> {
    let mut command = supervisor::command("--restart", true)?;
    let mut signals = Signals::new([SIGCHLD, SIGHUP, SIGINT, SIGTERM]).context("signals can't be handled")?;
    let (mut backoff, mut failures) = (Backoff::new(MAX_PAUSE, LONG_RUN), Vec::new());
    for attempt in 0..=restarts {
        let begun = Instant::now();
        let mut child = command.env(ATTEMPT, attempt.to_string()).spawn().context("this program can't start itself")?;
        let (status, is_signalled) = wait(&mut child, &mut signals)?;
        if status.success() || is_signalled {
            return Ok(code(status));
        }
        let ran = begun.elapsed();
        let failure = format!("{status} after {:.1} s", ran.as_secs_f64());
        let pause = backoff.after_failure(ran);
        if attempt < restarts {
            let next = format!("it starts again in {pause:?} ({} of {restarts})", attempt + 1);
            log::tell("disco", &format!("the program failed: {failure}; {next}"));
            if is_ended_by_signal(&mut signals, pause) {
                return Ok(code(status));
            }
        }
        failures.push(failure);
    }
    let list: String = failures.iter().enumerate().map(|(at, failure)| format!("\n{}. {failure}", at + 1)).collect();
    bail!("the program failed {} times, and --restart is {restarts}:{list}", failures.len())
}

/// Waits for the end of the program. Also returns whether a signal to this process ends the restarts.
fn wait(child: &mut Child, signals: &mut Signals) -> anyhow::Result<(ExitStatus, bool)> {
    let mut is_signalled = false;
    loop {
        if let Some(status) = child.try_wait().context("the program can't be waited for")? {
            return Ok((status, is_signalled));
        }
        for signal in signals.wait() {
            is_signalled |= pass_on(signal, child);
        }
    }
}

/// Waits for `pause`. Returns whether a signal to this process has ended the pause, and with it the restarts.
fn is_ended_by_signal(signals: &mut Signals, pause: Duration) -> bool {
    let begun = Instant::now();
    while begun.elapsed() < pause {
        if signals.pending().any(|signal| signal != SIGCHLD) {
            return true;
        }
        thread::sleep(POLL_INTERVAL);
    }
    false
}

/// Passes a signal on to the program. Returns whether the signal ends the restarts.
fn pass_on(signal: i32, child: &Child) -> bool {
    let passed = match signal {
        SIGCHLD => return false,
        SIGTERM => Signal::TERM,
        SIGHUP => Signal::HUP,
        _ => return true,
    };
    // Fails if the program has ended.
    _ = kill_process(Pid::from_child(child), passed);
    true
}

/// The exit status that a shell gives for the status of a program.
fn code(status: ExitStatus) -> ExitCode {
    use std::os::unix::process::ExitStatusExt as _;
    let code = status.code().or(status.signal().map(|signal| 128 + signal)).unwrap_or(1);
    ExitCode::from(u8::try_from(code).unwrap_or(1))
}
