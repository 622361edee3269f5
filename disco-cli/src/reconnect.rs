//! `disco worker --reconnect`: serves sessions one after another.

use std::process::{Command, ExitCode};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, ensure};
use rustix::process::{Pid, Signal, getpid, getppid, set_parent_process_death_signal};

use crate::log;

/// The option of this command, and that of the processes that it starts.
const RECONNECT: &str = "--reconnect";
const SUPERVISOR: &str = "--supervisor";

/// Pause after a node that has failed, which doubles with each failure, and its maximum.
const PAUSE: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(30));
/// A node that has run for this long resets the pause.
const LONG_RUN: Duration = Duration::from_secs(60);

/// Starts this command again for each session, without `--reconnect`, until this process is ended. A new process for
/// each session starts without the state of the last one, such as libraries and memory.
///
/// # Errors
/// The process can't be started.
pub(crate) fn serve() -> anyhow::Result<ExitCode> {
    let program = std::env::current_exe().context("the path of this program is unknown")?;
    let supervisor = getpid().as_raw_nonzero().to_string();
    let mut args = Vec::new();
    for arg in std::env::args_os().skip(1) {
        match arg == RECONNECT && !args.iter().any(|arg| arg == SUPERVISOR) {
            true => args.extend([SUPERVISOR.into(), supervisor.clone().into()]),
            false => args.push(arg),
        }
    }
    let mut pause = PAUSE.0;
    loop {
        let started = Instant::now();
        let status = Command::new(&program).args(&args).status().context("this program can't start itself")?;
        if status.success() || started.elapsed() > LONG_RUN {
            pause = PAUSE.0;
        }
        let end = if status.success() { "the session is over".into() } else { format!("the node has ended: {status}") };
        log::tell("disco", &format!("{end}; waiting for the next session"));
        if !status.success() {
            thread::sleep(pause);
            pause = (2 * pause).min(PAUSE.1);
        }
    }
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
