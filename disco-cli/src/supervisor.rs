//! A command that starts itself again: `disco run --restart` and `disco worker --reconnect`.

use std::env;
use std::ffi::OsString;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context as _, ensure};
use rustix::process::{Pid, Signal, getpid, getppid, set_parent_process_death_signal};

/// The option of the processes that a supervisor starts.
const SUPERVISOR: &str = "--supervisor";
/// Pause after the first failure.
const FIRST_PAUSE: Duration = Duration::from_secs(1);

/// This command as its supervisor starts it: `option` is replaced by `--supervisor` with the id of this process.
///
/// # Errors
/// The path of this program is unknown.
pub(crate) fn command(option: &str, takes_value: bool) -> anyhow::Result<Command> {
    let mut command = Command::new(env::current_exe().context("the path of this program is unknown")?);
    command.args(replaced(env::args_os().skip(1), option, takes_value, getpid()));
    Ok(command)
}

/// `args` with `--supervisor` in place of `option`. The arguments after `--` are those of the program.
fn replaced(args: impl Iterator<Item = OsString>, option: &str, takes_value: bool, this: Pid) -> Vec<OsString> {
    let mut args = args.into_iter();
    let mut replaced = Vec::new();
    while let Some(arg) = args.next() {
        let text = arg.to_string_lossy();
        if text == "--" {
            replaced.push(arg);
            break;
        }
        let has_value_inside = text.strip_prefix(option).is_some_and(|rest| takes_value && rest.starts_with('='));
        if text == option && takes_value {
            args.next();
        }
        match text == option || has_value_inside {
            true => replaced.extend([SUPERVISOR.into(), this.as_raw_nonzero().to_string().into()]),
            false => replaced.push(arg),
        }
    }
    replaced.extend(args);
    replaced
}

/// Makes the system end this process with its supervisor, the process `supervisor`.
///
/// # Errors
/// The supervisor has ended.
pub(crate) fn end_with(supervisor: i32) -> anyhow::Result<()> {
    set_parent_process_death_signal(Some(Signal::TERM)).context("this process can't be tied to its parent")?;
    ensure!(getppid() == Pid::from_raw(supervisor), "the parent process {supervisor} has ended");
    Ok(())
}

/// Pauses before a process is started again: 1 s, and twice as long after each failure, up to a maximum.
pub(crate) struct Backoff {
    next: Duration,
    max: Duration,
    long_run: Duration,
}

impl Backoff {
    /// A failure after a run that was longer than `long_run` counts as the first one.
    pub(crate) fn new(max: Duration, long_run: Duration) -> Self {
        Self { next: FIRST_PAUSE, max, long_run }
    }

    /// The next failure counts as the first one.
    pub(crate) fn reset(&mut self) {
        self.next = FIRST_PAUSE;
    }

    /// The pause after a process that has run for `ran` and then failed.
    pub(crate) fn after_failure(&mut self, ran: Duration) -> Duration {
        if ran > self.long_run {
            self.reset();
        }
        let pause = self.next;
        self.next = (2 * pause).min(self.max);
        pause
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_option_is_replaced_with_its_value_and_arguments_of_the_program_are_not() {
        let replaced = |args: &str, option: &str, takes_value: bool| {
            let args = args.split(' ').map(OsString::from);
            let this = Pid::from_raw(7).unwrap();
            replaced(args, option, takes_value, this).join(" ".as_ref()).into_string().unwrap()
        };
        let run = |args: &str| replaced(args, "--restart", true);
        assert_eq!(run("run --restart 3 --workers 2 -- p --restart"), "run --supervisor 7 --workers 2 -- p --restart");
        assert_eq!(run("run --restart=3 -- p --restart=4"), "run --supervisor 7 -- p --restart=4");
        let worker = |args: &str| replaced(args, "--reconnect", false);
        assert_eq!(worker("worker --reconnect --connect h:1"), "worker --supervisor 7 --connect h:1");
        assert_eq!(worker("worker --reconnect -- p --reconnect"), "worker --supervisor 7 -- p --reconnect");
    }

    #[test]
    fn pauses_double_up_to_a_maximum_and_begin_again_after_a_long_run() {
        let mut backoff = Backoff::new(Duration::from_secs(5), Duration::from_secs(60));
        let mut pauses = |runs: &[u64]| -> Vec<u64> {
            runs.iter().map(|ran| backoff.after_failure(Duration::from_secs(*ran)).as_secs()).collect()
        };
        assert_eq!(pauses(&[1, 1, 1, 1, 60]), [1, 2, 4, 5, 5]);
        assert_eq!(pauses(&[61, 1]), [1, 2]);
        backoff.reset();
        assert_eq!(backoff.after_failure(Duration::ZERO).as_secs(), 1);
    }
}
