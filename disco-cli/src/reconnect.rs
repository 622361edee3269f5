//! `disco worker --reconnect`: serves sessions one after another.

use std::process::ExitCode;
use std::time::{Duration, Instant};

use crate::log;
use crate::supervisor::{self, Backoff, Supervisor};

/// Longest pause after a node that has failed.
const MAX_PAUSE: Duration = Duration::from_secs(30);
/// A node that has run for longer than this resets the pause.
const LONG_RUN: Duration = Duration::from_secs(60);

/// Starts this command again for each session, without `--reconnect`, until a signal ends this process. A new process
/// for each session starts without the state of the last one, such as libraries and memory.
///
/// # Errors
/// The process can't be started.
pub(crate) fn serve() -> anyhow::Result<ExitCode> {
    let mut command = supervisor::command("--reconnect", false)?;
    let supervisor = Supervisor::start()?;
    let mut backoff = Backoff::new(MAX_PAUSE, LONG_RUN);
    loop {
        let started = Instant::now();
        let status = supervisor.run(&mut command)?;
        if supervisor.is_ended() {
            return Ok(supervisor::code(status));
        }
        let end = if status.success() { "the session is over".into() } else { format!("the node has ended: {status}") };
        log::tell("disco", &format!("{end}; waiting for the next session"));
        if status.success() {
            backoff.reset()
        } else {
            supervisor.pause(backoff.after_failure(started.elapsed()))
        }
        if supervisor.is_ended() {
            return Ok(supervisor::code(status));
        }
    }
}
