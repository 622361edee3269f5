//! `disco worker --reconnect`: serves sessions one after another.

use std::process::ExitCode;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::Context as _;

use crate::log;
use crate::supervisor::{self, Backoff};

/// Longest pause after a node that has failed.
const MAX_PAUSE: Duration = Duration::from_secs(30);
/// A node that has run for longer than this resets the pause.
const LONG_RUN: Duration = Duration::from_secs(60);

/// Starts this command again for each session, without `--reconnect`, until this process is ended. A new process for
/// each session starts without the state of the last one, such as libraries and memory.
///
/// # Errors
/// The process can't be started.
pub(crate) fn serve() -> anyhow::Result<ExitCode> {
    let mut command = supervisor::command("--reconnect", false)?;
    let mut backoff = Backoff::new(MAX_PAUSE, LONG_RUN);
    loop {
        let started = Instant::now();
        let status = command.status().context("this program can't start itself")?;
        let end = if status.success() { "the session is over".into() } else { format!("the node has ended: {status}") };
        log::tell("disco", &format!("{end}; waiting for the next session"));
        match status.success() {
            true => backoff.reset(),
            false => thread::sleep(backoff.after_failure(started.elapsed())),
        }
    }
}
