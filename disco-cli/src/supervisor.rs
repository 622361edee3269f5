//! A command that starts itself again: `disco run --restart` and `disco worker --reconnect`.

use std::env;
use std::ffi::OsString;
use std::fs;
use std::process::{Command, ExitCode, ExitStatus};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

use anyhow::{Context as _, ensure};
use disco::internal::signals;
use rustix::io::retry_on_intr;
use rustix::process::{
    Pid, Signal, WaitId, WaitIdOptions, getpid, getppid, kill_process, set_parent_process_death_signal, waitid,
};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};

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
        if text == option || has_value_inside {
            replaced.extend([SUPERVISOR.into(), this.as_raw_nonzero().to_string().into()])
        } else {
            replaced.push(arg)
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

/// Runs processes one after another, and passes signals to this process on to the running one.
pub(crate) struct Supervisor {
    state: Arc<State>,
}

#[derive(Default)]
struct State {
    run: Mutex<Run>,
    ended: Condvar,
}

#[derive(Default)]
struct Run {
    child: Option<Pid>,
    /// A signal has come, so no other process is started.
    is_ended: bool,
}

impl Supervisor {
    /// Handles SIGHUP, SIGINT and SIGTERM from now on.
    ///
    /// # Errors
    /// The system refuses a handler or a thread.
    pub(crate) fn start() -> anyhow::Result<Self> {
        let refused = "signals can't be handled";
        let mut signals = signals::handle(&[SIGHUP, SIGINT, SIGTERM]).context(refused)?;
        let state = Arc::<State>::default();
        let passes = state.clone();
        let pass_on = move || signals.forever().for_each(|signal| passes.pass_on(signal));
        thread::Builder::new().name("disco-signals".into()).spawn(pass_on).context(refused)?;
        Ok(Self { state })
    }

    /// Runs this command to its end.
    ///
    /// # Errors
    /// The process can't be started.
    pub(crate) fn run(&self, command: &mut Command) -> anyhow::Result<ExitStatus> {
        let mut run = self.state.run();
        let mut child = command.spawn().context("this program can't start itself")?;
        let pid = Pid::from_child(&child);
        run.child = Some(pid);
        if run.is_ended {
            _ = kill_process(pid, Signal::TERM);
        }
        drop(run);
        // The id stays that of the child until `wait`, so that no other process gets its signals.
        let options = WaitIdOptions::EXITED | WaitIdOptions::NOWAIT;
        let waited = retry_on_intr(|| waitid(WaitId::Pid(pid), options));
        self.state.run().child = None;
        waited.map_err(Into::into).and_then(|_| child.wait()).context("a process can't be waited for")
    }

    /// Whether a signal has told this process to end.
    pub(crate) fn is_ended(&self) -> bool {
        self.state.run().is_ended
    }

    /// Waits for this time, or until a signal comes.
    pub(crate) fn pause(&self, pause: Duration) {
        let waited = self.state.ended.wait_timeout_while(self.state.run(), pause, |run| !run.is_ended);
        drop(waited.unwrap_or_else(PoisonError::into_inner));
    }
}

impl State {
    fn run(&self) -> MutexGuard<'_, Run> {
        self.run.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn pass_on(&self, signal: i32) {
        let mut run = self.run();
        run.is_ended = true;
        self.ended.notify_all();
        let passed = match signal {
            SIGTERM => Signal::TERM,
            SIGHUP => Signal::HUP,
            // A terminal has sent it to both.
            _ if is_in_foreground() => return,
            _ => Signal::INT,
        };
        // Fails if the process has ended.
        if let Some(child) = run.child {
            _ = kill_process(child, passed);
        }
    }
}

/// Whether this process is one of those to which its terminal sends signals: its group is the terminal's.
fn is_in_foreground() -> bool {
    let stat = fs::read_to_string("/proc/self/stat").unwrap_or_default();
    let words: Vec<_> = stat.rsplit_once(") ").map_or("", |(_, rest)| rest).split(' ').collect();
    // State, parent, group, session, terminal, group of the terminal.
    words.get(2).is_some_and(|group| Some(group) == words.get(5))
}

/// The exit status that a shell gives for the status of a program.
pub(crate) fn code(status: ExitStatus) -> ExitCode {
    use std::os::unix::process::ExitStatusExt as _;
    let code = status.code().or(status.signal().map(|signal| 128 + signal)).unwrap_or(1);
    ExitCode::from(u8::try_from(code).unwrap_or(1))
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
