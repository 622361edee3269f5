//! `disco run`

use std::io;
use std::process::{Command, ExitCode};

use anyhow::Context as _;
use clap::Args;
use disco::{SessionKind, World, backend};

/// Run a program whose session is made by `disco::from_env()`
///
/// The program takes the place of this command: its exit status is the program's, and so are signals.
#[derive(Args)]
pub(crate) struct Run {
    /// Backend of the data plane
    #[arg(long, default_value = "local")]
    backend: String,
    /// Number of workers
    #[arg(long, default_value_t = 1)]
    workers: usize,
    /// Number of equal groups that the workers are split in
    #[arg(long, default_value_t = 1)]
    groups: usize,
    /// Where the workers live
    #[arg(long, default_value_t)]
    session: SessionKind,
    /// The program and its arguments
    #[arg(last = true, required = true, value_name = "PROGRAM")]
    program: Vec<String>,
}

impl Run {
    pub(crate) fn run(self) -> anyhow::Result<ExitCode> {
        World::new(self.workers, self.groups)?;
        backend::find(&self.backend)?.probe()?;
        let [program, args @ ..] = &self.program[..] else { anyhow::bail!("no program to run") };
        let mut command = Command::new(program);
        command
            .args(args)
            .env("DISCO_BACKEND", &self.backend)
            .env("DISCO_WORKERS", self.workers.to_string())
            .env("DISCO_GROUPS", self.groups.to_string())
            .env("DISCO_SESSION", self.session.name());
        replace(command).with_context(|| format!("can't run `{program}`"))
    }
}

/// Becomes the program; returns only if that fails.
#[cfg(unix)]
fn replace(mut command: Command) -> io::Result<ExitCode> {
    use std::os::unix::process::CommandExt as _;
    Err(command.exec())
}

/// Runs the program and passes its status on.
#[cfg(not(unix))]
fn replace(mut command: Command) -> io::Result<ExitCode> {
    let status = command.status()?;
    Ok(if status.success() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}
