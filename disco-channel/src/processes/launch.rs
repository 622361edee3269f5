//! Starting the processes of workers.

use std::env;
use std::ffi::OsString;
use std::fmt;
use std::os::fd::OwnedFd;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};

use disco_core::{Error, Result};
use rustix::process::{self, Pid, PidfdFlags};

use super::invitation::{Invitation, VARIABLE};
use super::output::Pipe;

/// What is started for a worker: a program that serves as one when it is [invited](super::serve).
#[derive(Clone, Debug)]
pub struct Launch {
    program: PathBuf,
    /// What the program is called, in messages and for itself.
    name: OsString,
    args: Vec<OsString>,
    env: Vec<(OsString, OsString)>,
}

/// A process that was started.
pub(super) struct Started {
    pub(super) child: Child,
    /// Readable once it has ended.
    pub(super) exit: OwnedFd,
    /// Taken by whoever passes it on.
    pub(super) output: Option<[Pipe; 2]>,
}

impl Launch {
    /// This program once more, with the same arguments.
    pub fn this_program() -> Self {
        let mut args = env::args_os();
        let name = args.next().unwrap_or_default();
        // The running file itself, also after something else was put in its place.
        Self { program: "/proc/self/exe".into(), name, args: args.collect(), env: Vec::new() }
    }

    /// Another program.
    pub fn program(program: impl Into<PathBuf>, args: impl IntoIterator<Item = impl Into<OsString>>) -> Self {
        let program = program.into();
        let args = args.into_iter().map(Into::into).collect();
        Self { name: program.clone().into(), program, args, env: Vec::new() }
    }

    /// With a variable in its environment, beside those of this process.
    pub fn env(mut self, name: impl Into<OsString>, value: impl Into<OsString>) -> Self {
        self.env.push((name.into(), value.into()));
        self
    }

    /// Starts it for a worker. It reads nothing, and what it writes comes through pipes.
    ///
    /// # Errors
    /// The system refuses.
    pub(super) fn start(&self, invitation: &Invitation) -> Result<Started> {
        let worker = invitation.worker;
        let refused = |error: std::io::Error| Error::invalid(format!("{worker}: {self} can't be started: {error}"));
        let mut command = Command::new(&self.program);
        command.arg0(&self.name).args(&self.args).envs(self.env.iter().map(|(name, value)| (name, value)));
        command.env(VARIABLE, invitation.text());
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().map_err(refused)?;
        let watch = |child: &mut Child| {
            let pid = i32::try_from(child.id()).ok().and_then(Pid::from_raw).ok_or(std::io::ErrorKind::InvalidInput)?;
            let exit = process::pidfd_open(pid, PidfdFlags::empty())?;
            let (out, err) = child.stdout.take().zip(child.stderr.take()).ok_or(std::io::ErrorKind::BrokenPipe)?;
            Ok((exit, [Pipe::out(worker, out.into())?, Pipe::err(worker, err.into())?]))
        };
        match watch(&mut child) {
            Ok((exit, output)) => Ok(Started { child, exit, output: Some(output) }),
            Err(error) => {
                // It has just been started, and nobody knows it yet.
                _ = child.kill();
                _ = child.wait();
                Err(refused(error))
            }
        }
    }
}

impl fmt::Display for Launch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.name.display())
    }
}
