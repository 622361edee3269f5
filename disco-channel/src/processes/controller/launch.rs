//! Starting the processes of workers.

use std::env;
use std::ffi::OsString;
use std::fmt;
use std::io;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;

use disco_core::{Error, Result};

use super::output::Pipe;
use crate::environment;
use crate::process::Process;
use crate::processes::invitation::{Invitation, VARIABLE};

/// How the process of a worker comes about: a program that serves as one when it is [invited](crate::processes::serve).
#[derive(Clone)]
pub struct Launch(How);

#[derive(Clone)]
enum How {
    Program(Program),
    Elsewhere(Arc<Invite>),
}

type Invite = dyn Fn(&Invitation) -> Result<()> + Send + Sync;

#[derive(Clone)]
struct Program {
    path: PathBuf,
    /// What the program is called, in messages and for itself.
    name: OsString,
    args: Vec<OsString>,
    env: Vec<(OsString, OsString)>,
}

impl Launch {
    /// This program once more, with the same arguments.
    pub fn this_program() -> Self {
        let mut args = env::args_os();
        let name = args.next().unwrap_or_default();
        // The running file itself, also after something else was put in its place.
        Self(How::Program(Program { path: "/proc/self/exe".into(), name, args: args.collect(), env: Vec::new() }))
    }

    /// Another program.
    pub fn program(path: impl Into<PathBuf>, args: impl IntoIterator<Item = impl Into<OsString>>) -> Self {
        let path = path.into();
        let args = args.into_iter().map(Into::into).collect();
        Self(How::Program(Program { name: path.clone().into(), path, args, env: Vec::new() }))
    }

    /// The same program with these arguments in place of its own.
    pub fn args(mut self, args: impl IntoIterator<Item = impl Into<OsString>>) -> Self {
        if let How::Program(program) = &mut self.0 {
            program.args = args.into_iter().map(Into::into).collect();
        }
        self
    }

    /// Nothing is started: somebody else has, as `mpiexec` does, and `invite` passes each worker's invitation on to it.
    pub fn elsewhere(invite: impl Fn(&Invitation) -> Result<()> + Send + Sync + 'static) -> Self {
        Self(How::Elsewhere(Arc::new(invite)))
    }

    /// With a variable in the environment of the program, beside those of this process.
    pub fn env(mut self, name: impl Into<OsString>, value: impl Into<OsString>) -> Self {
        if let How::Program(program) = &mut self.0 {
            program.env.push((name.into(), value.into()));
        }
        self
    }

    /// Starts the process of a worker, whose output comes out of new `pipes`, or invites it.
    ///
    /// # Errors
    /// The system refuses; `invite`'s own.
    pub(super) fn start(&self, invitation: &Invitation, pipes: &mut Vec<Pipe>) -> Result<Process> {
        match &self.0 {
            How::Elsewhere(invite) => invite(invitation).map(|()| Process::Unknown),
            How::Program(program) => program.start(invitation, pipes).map_err(|error| {
                Error::system(format!("{}: {} can't be started", invitation.worker, program.name.display()), error)
            }),
        }
    }
}

impl Program {
    /// It reads nothing, and what it writes comes through pipes.
    fn start(&self, invitation: &Invitation, pipes: &mut Vec<Pipe>) -> io::Result<Process> {
        let mut command = Command::new(&self.path);
        environment::OF_NODES.iter().for_each(|name| _ = command.env_remove(name));
        command.arg0(&self.name).args(&self.args).envs(self.env.iter().map(|(name, value)| (name, value)));
        command.env(VARIABLE, invitation.text());
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn()?;
        let listen = |child: &mut Child| {
            let (out, err) = child.stdout.take().zip(child.stderr.take()).ok_or(io::ErrorKind::BrokenPipe)?;
            let worker = invitation.worker;
            Ok([Pipe::out(worker, out.into())?, Pipe::err(worker, err.into())?])
        };
        // A child of which this fails is killed with the process.
        let listened = listen(&mut child);
        let process = Process::child(child)?;
        listened.map(|new| {
            pipes.extend(new);
            process
        })
    }
}

impl fmt::Debug for Launch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0 {
            How::Elsewhere(_) => f.write_str("Launch::elsewhere"),
            // Its variables may be secrets.
            How::Program(program) => f
                .debug_struct("Launch")
                .field("name", &program.name)
                .field("args", &program.args)
                .finish_non_exhaustive(),
        }
    }
}
