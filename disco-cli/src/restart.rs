//! `disco run --restart`: starts the program again after it has failed.

use std::env;
use std::ffi::OsString;
use std::process::{Child, Command, ExitCode, ExitStatus};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail};
use rustix::process::{Pid, Signal, getpid, kill_process};
use signal_hook::consts::{SIGCHLD, SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

use crate::log;

/// Environment variable with the number of times that the program was started before.
const ATTEMPT: &str = "DISCO_RESTARTS";
/// Pause after the first failure, which doubles with each failure, and its maximum.
const PAUSE: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(60));
/// A program that has run for this long resets the pause.
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
    let (disco, args) = (env::current_exe().context("the path of this program is unknown")?, args());
    let mut signals = Signals::new([SIGCHLD, SIGHUP, SIGINT, SIGTERM]).context("signals can't be handled")?;
    let (mut pause, mut failures) = (PAUSE.0, Vec::new());
    for attempt in 0..=restarts {
        let begun = Instant::now();
        let mut command = Command::new(&disco);
        command.args(&args).env(ATTEMPT, attempt.to_string());
        let mut child = command.spawn().context("this program can't start itself")?;
        let mut is_told = false;
        let status = loop {
            if let Some(status) = child.try_wait().context("the program can't be waited for")? {
                break status;
            }
            for signal in signals.wait() {
                is_told |= pass_on(signal, &child);
            }
        };
        if status.success() || is_told {
            return Ok(code(status));
        }
        let took = begun.elapsed();
        failures.push(format!("{status} after {:.1} s", took.as_secs_f64()));
        if took > LONG_RUN {
            pause = PAUSE.0;
        }
        if attempt < restarts {
            let failure = &failures[failures.len() - 1];
            log::tell(
                "disco",
                &format!("the program failed: {failure}; it starts again in {pause:?} ({} of {restarts})", attempt + 1),
            );
            let paused = Instant::now();
            while paused.elapsed() < pause {
                if signals.pending().any(|signal| signal != SIGCHLD) {
                    return Ok(code(status));
                }
                thread::sleep(POLL_INTERVAL);
            }
            pause = (2 * pause).min(PAUSE.1);
        }
    }
    let list: String = failures.iter().enumerate().map(|(at, failure)| format!("\n{}. {failure}", at + 1)).collect();
    bail!("the program failed {} times, and --restart is {restarts}:{list}", failures.len())
}

/// The arguments of this command, with the option by which its processes know this one in place of `--restart`.
fn args() -> Vec<OsString> {
    let supervisor = ["--supervisor".into(), getpid().as_raw_nonzero().to_string().into()];
    let (mut args, mut supervisor): (Vec<OsString>, _) = (Vec::new(), Some(supervisor));
    let mut rest = env::args_os().skip(1);
    while let Some(arg) = rest.next() {
        let text = arg.to_string_lossy();
        if text == "--" {
            args.push(arg);
            break;
        }
        if text == "--restart" {
            rest.next();
        } else if !text.starts_with("--restart=") {
            let is_run = text == "run";
            args.push(arg);
            args.extend(supervisor.take_if(|_| is_run).into_iter().flatten());
        }
    }
    args.extend(rest);
    args
}

/// Passes a signal on to the program. Returns whether it ends the restarts.
fn pass_on(signal: i32, child: &Child) -> bool {
    let passed = match signal {
        SIGCHLD => return false,
        SIGTERM => Signal::TERM,
        SIGHUP => Signal::HUP,
        _ => return true,
    };
    // It may have ended.
    _ = kill_process(Pid::from_child(child), passed);
    true
}

/// The exit status of a shell for a program that ended like this.
fn code(status: ExitStatus) -> ExitCode {
    use std::os::unix::process::ExitStatusExt as _;
    let code = status.code().or(status.signal().map(|signal| 128 + signal)).unwrap_or(1);
    ExitCode::from(u8::try_from(code).unwrap_or(1))
}
