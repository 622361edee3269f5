//! `disco run`

use std::ffi::OsString;
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
    /// Where the workers live [default: processes for `mpi`, threads for others]
    #[arg(long)]
    session: Option<SessionKind>,
    /// Each worker's device, parted by commas [default: worker i takes device i]
    #[arg(long, value_delimiter = ',', value_name = "ORDINALS")]
    devices: Vec<i32>,
    /// What starts the ranks of `mpi`, up to their program [default: MPI's own launcher, where it needs one]
    #[arg(long, value_name = "COMMAND")]
    launcher: Option<String>,
    /// The program and its arguments
    #[arg(last = true, required = true, value_name = "PROGRAM")]
    program: Vec<String>,
}

impl Run {
    pub(crate) fn run(self) -> anyhow::Result<ExitCode> {
        World::new(self.workers, self.groups)?;
        backend::find(&self.backend)?.probe()?;
        let words = self.launcher()?.into_iter().chain(self.program.iter().map(OsString::from));
        let words: Vec<OsString> = words.collect();
        let [program, args @ ..] = &words[..] else { anyhow::bail!("no program to run") };
        let session = self.session.unwrap_or(SessionKind::of(&self.backend));
        let mut command = Command::new(program);
        command
            .args(args)
            .env("DISCO_BACKEND", &self.backend)
            .env("DISCO_WORKERS", self.workers.to_string())
            .env("DISCO_GROUPS", self.groups.to_string())
            .env("DISCO_SESSION", session.name());
        if !self.devices.is_empty() {
            let devices: Vec<_> = self.devices.iter().map(i32::to_string).collect();
            command.env("DISCO_DEVICES", devices.join(","));
        }
        replace(command).with_context(|| format!("can't run `{}`", program.display()))
    }
}

impl Run {
    /// What goes before the program.
    fn launcher(&self) -> anyhow::Result<Vec<OsString>> {
        if let Some(launcher) = &self.launcher {
            return Ok(launcher.split_whitespace().map(OsString::from).collect());
        }
        #[cfg(feature = "mpi")]
        if self.backend == "mpi" && self.workers > 1 {
            return Ok(disco::mpi::launcher(self.workers)?);
        }
        Ok(Vec::new())
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
