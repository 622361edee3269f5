//! Starting the processes of workers.

use std::env;
use std::ffi::OsString;
use std::fmt;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::Arc;

use disco_core::{Error, Result, WorkerId, WorkerRange};

use super::spare::Spare;
use crate::remote::environment;
use crate::remote::output::Pipe;
use crate::remote::process::Process;
use crate::remote::processes::invitation::{Invitation, SPARE, VARIABLE};

/// How the processes of workers are started. The program must [serve](crate::remote::processes::serve) as a worker when it is
/// invited.
#[derive(Clone)]
pub struct Launch(How);

#[derive(Clone)]
enum How {
    Program(Program),
    Elsewhere {
        invite: Arc<Invite>,
        is_repeatable: bool,
        /// The program of worker 0, if this session starts it.
        worker_0: Option<Program>,
    },
    /// The workers are threads in processes of another session.
    Subset {
        invite: Arc<Invite>,
    },
}

type Invite = dyn Fn(&Invitation) -> Result<()> + Send + Sync;

#[derive(Clone)]
struct Program {
    path: PathBuf,
    /// Name of the program in messages, and its `argv[0]`.
    name: OsString,
    args: Vec<OsString>,
    env: Vec<(OsString, OsString)>,
}

/// The executable that is running, even if its path now names another file; without `/proc`, the one with which it was
/// started.
pub fn this_program() -> PathBuf {
    let running = PathBuf::from("/proc/self/exe");
    let started = || env::args_os().next().map(PathBuf::from);
    if running.exists() { running } else { started().unwrap_or(running) }
}

impl Launch {
    /// Starts this program once more, with the same arguments.
    pub fn this_program() -> Self {
        let mut args = env::args_os();
        let name = args.next().unwrap_or_default();
        Self(How::Program(Program { path: this_program(), name, args: args.collect(), env: Vec::new() }))
    }

    /// Starts another program, with these arguments. It must take its [invitation](Invitation::take) and serve with it first
    /// (with the facade: call `disco::init`), and have the same worker functions.
    pub fn program(path: impl Into<PathBuf>, args: impl IntoIterator<Item = impl Into<OsString>>) -> Self {
        let path = path.into();
        let args = args.into_iter().map(Into::into).collect();
        Self(How::Program(Program { name: path.clone().into(), path, args, env: Vec::new() }))
    }

    /// Replaces the arguments of the program.
    pub fn args(mut self, args: impl IntoIterator<Item = impl Into<OsString>>) -> Self {
        if let How::Program(program) = &mut self.0 {
            program.args = args.into_iter().map(Into::into).collect();
        }
        self
    }

    /// Starts nothing: a launcher such as `mpiexec` has started the processes, and `invite` passes each worker its
    /// invitation.
    pub fn elsewhere(invite: impl Fn(&Invitation) -> Result<()> + Send + Sync + 'static) -> Self {
        Self(How::Elsewhere { invite: Arc::new(invite), is_repeatable: true, worker_0: None })
    }

    /// Starts nothing: the workers are threads in the processes of another session's workers, to which `invite` passes the
    /// invitations. The session neither watches nor kills these processes.
    pub(super) fn in_subset(invite: impl Fn(&Invitation) -> Result<()> + Send + Sync + 'static) -> Self {
        Self(How::Subset { invite: Arc::new(invite) })
    }

    /// Whether the workers are threads in processes of another session.
    pub(super) fn is_in_subset(&self) -> bool {
        matches!(self.0, How::Subset { .. })
    }

    /// The launcher can't start another process for a worker that is lost.
    pub fn only_once(mut self) -> Self {
        if let How::Elsewhere { is_repeatable, .. } = &mut self.0 {
            *is_repeatable = false;
        }
        self
    }

    /// Starts worker 0 as `program` says, because the launcher's process for it is the controller's. `program` must start
    /// processes itself.
    pub fn starting_worker_0(mut self, program: Self) -> Self {
        if let (How::Elsewhere { worker_0, .. }, How::Program(program)) = (&mut self.0, program.0) {
            *worker_0 = Some(program);
        }
        self
    }

    /// Whether this starts processes, and not a launcher.
    pub fn starts_processes(&self) -> bool {
        matches!(self.0, How::Program(_))
    }

    /// Whether other processes can be started for these workers.
    pub(super) fn is_repeatable(&self, workers: WorkerRange) -> bool {
        match &self.0 {
            How::Elsewhere { is_repeatable: false, worker_0, .. } => {
                worker_0.is_some() && workers.iter().eq([WorkerId::new(0)])
            }
            _ => true,
        }
    }

    /// Starts a process that waits until it gets an invitation.
    ///
    /// # Errors
    /// The process can't be started, or a launcher starts the processes.
    pub(super) fn start_spare(&self) -> Result<Spare> {
        match &self.0 {
            How::Elsewhere { .. } | How::Subset { .. } => {
                Err(Error::state("a spare worker: a launcher starts the workers"))
            }
            How::Program(program) => program.start_spare().map_err(|error| {
                Error::system(format!("a spare worker: {} can't be started", program.name.display()), error)
            }),
        }
    }

    /// Adds a variable to the environment that the program inherits from this process.
    pub fn env(mut self, name: impl Into<OsString>, value: impl Into<OsString>) -> Self {
        if let How::Program(program) = &mut self.0 {
            program.env.push((name.into(), value.into()));
        }
        self
    }

    /// Starts or invites the process of a worker. Adds the pipes of a started process's output to `pipes`.
    ///
    /// # Errors
    /// The process can't be started, or `invite` fails.
    pub(super) fn start(&self, invitation: &Invitation, pipes: &mut Vec<Pipe>) -> Result<Process> {
        match &self.0 {
            How::Elsewhere { worker_0: Some(program), .. } if invitation.worker == WorkerId::new(0) => {
                program.start(invitation, pipes)
            }
            How::Elsewhere { invite, .. } | How::Subset { invite } => invite(invitation).map(|()| Process::Unknown),
            How::Program(program) => program.start(invitation, pipes),
        }
    }
}

impl Program {
    /// Starts the process with null standard input, and pipes for its output.
    ///
    /// # Errors
    /// The process can't be started.
    fn start(&self, invitation: &Invitation, pipes: &mut Vec<Pipe>) -> Result<Process> {
        let worker = invitation.worker;
        let start = || -> io::Result<(Process, [Pipe; 2])> {
            let (process, [out, err]) = self.spawn(&invitation.text(), Stdio::null())?;
            Ok((process, [Pipe::out(worker, out)?, Pipe::err(worker, err)?]))
        };
        let (process, output) = start()
            .map_err(|error| Error::system(format!("{worker}: {} can't be started", self.name.display()), error))?;
        pipes.extend(output);
        Ok(process)
    }

    /// Starts the process with a socket as its standard input, by which it gets its invitation.
    fn start_spare(&self) -> io::Result<Spare> {
        let (ours, theirs) = UnixStream::pair()?;
        let (process, output) = self.spawn(SPARE, OwnedFd::from(theirs).into())?;
        Spare::new(process, ours, output)
    }

    /// Starts the process, with pipes for its standard output and error.
    fn spawn(&self, invitation: &str, input: Stdio) -> io::Result<(Process, [OwnedFd; 2])> {
        let mut command = Command::new(&self.path);
        environment::OF_NODES.iter().for_each(|name| _ = command.env_remove(name));
        command.arg0(&self.name).args(&self.args).envs(self.env.iter().map(|(name, value)| (name, value)));
        command.env(VARIABLE, invitation);
        command.stdin(input).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn()?;
        let output = child.stdout.take().zip(child.stderr.take());
        // On failure, dropping `process` kills the child.
        let process = Process::child(child)?;
        let (out, err) = output.ok_or(io::ErrorKind::BrokenPipe)?;
        Ok((process, [out.into(), err.into()]))
    }
}

impl fmt::Debug for Launch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0 {
            How::Elsewhere { .. } => f.write_str("Launch::elsewhere"),
            How::Subset { .. } => f.write_str("Launch::in_subset"),
            // The variables are left out: they may be secrets.
            How::Program(program) => f
                .debug_struct("Launch")
                .field("name", &program.name)
                .field("args", &program.args)
                .finish_non_exhaustive(),
        }
    }
}
