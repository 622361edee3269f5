//! Processes of TVM's workers.

use std::ffi::OsString;
use std::fmt;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use disco_core::error::{LossCause, LostPeer};
use disco_core::{Error, Result, WorkerConfig, WorkerId, WorkerRange, sync};

use super::connection::Connection;
use super::opened::{LastLines, Opened};
use crate::remote::output::{Output, Pipe, Sink};
use crate::remote::process::Process;
use crate::remote::terminal;

/// Options of a [`Lane`](super::Lane) to processes.
#[non_exhaustive]
#[derive(Clone)]
pub struct Options {
    /// The Python interpreter, or another program that takes the place of `python3 -m tvm.exec.disco_worker`.
    pub program: PathBuf,
    /// Arguments before `ID WORKERS GROUPS 0 0`.
    pub arguments: Vec<OsString>,
    /// Variables for the processes, besides those of this process.
    pub variables: Vec<(OsString, OsString)>,
    /// The world, and the limit of values.
    pub config: WorkerConfig,
    /// Timeout for the workers to start and answer.
    pub start: Duration,
    /// Gets the lines that workers print.
    pub output: Sink,
}

impl Options {
    /// Defaults: `python3 -m tvm.exec.disco_worker`, start timeout 60 s. Output of workers is printed here with a
    /// prefix, and on a terminal with control characters escaped.
    pub fn new(config: WorkerConfig) -> Self {
        let output =
            Arc::new(|worker: WorkerId, is_err, line: &[u8]| terminal::print(&worker.to_string(), is_err, line));
        Self {
            program: "python3".into(),
            arguments: ["-m", "tvm.exec.disco_worker"].map(OsString::from).to_vec(),
            variables: Vec::new(),
            config,
            start: Duration::from_secs(60),
            output,
        }
    }
}

impl fmt::Debug for Options {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // The variables are left out: they may be secrets.
        f.debug_struct("Options").field("program", &self.program).field("config", &self.config).finish_non_exhaustive()
    }
}

/// Starts the processes of `workers`.
///
/// # Errors
/// A process can't be started; those before it are killed.
pub(super) fn open(workers: WorkerRange, options: &Options) -> Result<Opened> {
    if workers.is_empty() || workers.indices().end > options.config.world.size() {
        let size = options.config.world.size();
        return Err(Error::invalid(format!("a lane of TVM to {workers} in a world of {size} workers")));
    }
    let (mut connections, mut pipes) = (Vec::new(), Vec::new());
    for worker in workers {
        let program = options.program.display();
        let (process, socket) = start(worker, options, &mut pipes)
            .map_err(|error| Error::system(format!("{worker}: {program} can't be started"), error))?;
        let range = WorkerRange::one(worker);
        connections.push(Connection::new(range, socket, Some(process), false, options.config.value_limit));
    }
    let last_lines = LastLines::default();
    let sink: Sink = {
        let (last_lines, output) = (last_lines.clone(), options.output.clone());
        Arc::new(move |worker, is_err, line| {
            if is_err && !line.is_empty() {
                let mut lines = sync::lock(&last_lines);
                lines.retain(|(of, _)| *of != worker);
                lines.push((worker, String::from_utf8_lossy(line).into_owned()));
            }
            output(worker, is_err, line);
        })
    };
    let output = Output::start(pipes, sink).map_err(|error| Error::system("output of TVM's workers", error))?;
    Ok(Opened { connections, output: Some(output), last_lines })
}

/// Starts the process of one worker. Its end of a socket pair is its standard input, and both descriptors of its
/// command line are 0: so no other process inherits them.
fn start(worker: WorkerId, options: &Options, pipes: &mut Vec<Pipe>) -> io::Result<(Process, OwnedFd)> {
    let (ours, theirs) = UnixStream::pair()?;
    let world = options.config.world;
    let mut command = Command::new(&options.program);
    command.args(&options.arguments);
    command.args([worker.index(), world.size(), world.groups(), 0, 0].map(|number| number.to_string()));
    command.envs(options.variables.iter().map(|(name, value)| (name, value)));
    command.stdin(OwnedFd::from(theirs)).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn()?;
    let listened = child.stdout.take().zip(child.stderr.take()).ok_or(io::ErrorKind::BrokenPipe);
    // On failure, dropping `process` kills the child.
    let process = Process::child(child)?;
    let (out, err) = listened?;
    pipes.extend([Pipe::out(worker, out.into())?, Pipe::err(worker, err.into())?]);
    Ok((process, ours.into()))
}

/// The error of a worker that has ended before it answered.
pub(super) fn ended_early(connection: &Connection, last_lines: &LastLines) -> Error {
    let workers = connection.workers;
    let lines = sync::lock(last_lines);
    let last = lines.iter().find(|(worker, _)| workers.contains(*worker));
    let last = last.map(|(_, line)| format!("; its last line on standard error is: {line}")).unwrap_or_default();
    let why = format!("{} before the worker answered{last}", connection.loss());
    Error::peer_lost(LostPeer::Workers { workers, node: None }, LossCause::Other(why))
}
