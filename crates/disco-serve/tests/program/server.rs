//! The program.

use std::fs;
use std::io::{BufRead as _, BufReader, Read as _};
use std::ops::Deref;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStderr, Command, ExitStatus, Stdio};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use super::client::{Client, LIMIT};

/// The folder of a small model.
pub(crate) fn model(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../disco-models/tests/models").join(name)
}

/// A server, which ends with this value.
pub(crate) struct Server {
    child: Child,
    client: Client,
    log: Option<JoinHandle<String>>,
}

/// The program without arguments.
pub(crate) fn program() -> Command {
    Command::new(env!("CARGO_BIN_EXE_disco-serve"))
}

impl Server {
    /// Starts a server of 2 workers, and waits until it is ready.
    pub(crate) fn start(model: &Path, options: &[&str]) -> Self {
        Self::start_as(program(), model, options)
    }

    /// The same for a command whose environment is set.
    pub(crate) fn start_as(command: Command, model: &Path, options: &[&str]) -> Self {
        let server = Self::listening(command, model, options);
        server.wait_until("the server is ready", || server.get("/ready").status == 200);
        server
    }

    /// Starts a server, of 2 workers unless the options have another number, and waits until it listens.
    pub(crate) fn listening(mut command: Command, model: &Path, options: &[&str]) -> Self {
        let workers = if options.contains(&"--workers") { &[][..] } else { &["--workers", "2"] };
        command.args(workers).args(["--port", "0", "--threads", "1", "--dtype", "f32", "--model"]).arg(model);
        command.args(options).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
        // A variable that the tests' own environment may have.
        let mut child = command.env_remove("DISCO_SERVE_TOKEN").spawn().unwrap();
        let mut log = BufReader::new(child.stderr.take().unwrap());
        let mut said = String::new();
        let address = loop {
            let mut line = String::new();
            assert_ne!(log.read_line(&mut line).unwrap(), 0, "the server has ended: {said}");
            said += &line;
            if let Some(address) = line.trim().strip_prefix("disco-serve: http://") {
                break address.trim_end_matches("/v1").parse().unwrap();
            }
        };
        let log = thread::spawn(move || rest(log, said));
        Self { child, client: Client { address }, log: Some(log) }
    }

    /// The processes of the workers, in the order of their start.
    pub(crate) fn workers(&self) -> Vec<Pid> {
        children_of(self.process())
    }

    /// Numbers of open files, of kept memories among them, and of workers.
    pub(crate) fn kept(&self) -> [usize; 3] {
        let files = fs::read_dir(format!("/proc/{}/fd", self.child.id())).unwrap();
        let files: Vec<_> = files.filter_map(|file| fs::read_link(file.ok()?.path()).ok()).collect();
        // Connections of clients come and go.
        let files = files.iter().map(|file| file.display().to_string()).filter(|file| !file.starts_with("socket:"));
        let files: Vec<_> = files.collect();
        let kept = files.iter().filter(|file| file.starts_with("/memfd:disco")).count();
        [files.len(), kept, self.workers().len()]
    }

    /// The process of the server.
    pub(crate) fn process(&self) -> Pid {
        Pid::from_raw(self.child.id() as i32)
    }

    pub(crate) fn signal(&self, signal: Signal) {
        kill(self.process(), signal).unwrap();
    }

    /// Waits for the end of the program. Returns its status.
    pub(crate) fn status(&mut self) -> ExitStatus {
        let start = Instant::now();
        loop {
            if let Some(status) = self.child.try_wait().unwrap() {
                return status;
            }
            assert!(start.elapsed() < LIMIT, "the server has not ended");
            thread::sleep(Duration::from_millis(5));
        }
    }

    /// Waits for the end of the program and of its workers. Returns its status and their output.
    pub(crate) fn ended(mut self) -> (ExitStatus, String) {
        (self.status(), self.log.take().unwrap().join().unwrap())
    }
}

impl Deref for Server {
    type Target = Client;

    fn deref(&self) -> &Client {
        &self.client
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        if let (Some(log), true) = (self.log.take(), thread::panicking()) {
            eprintln!("{}", log.join().unwrap());
        }
    }
}

/// The processes that a process has started, in the order of their start.
pub(crate) fn children_of(process: Pid) -> Vec<Pid> {
    let mut children: Vec<i32> = Vec::new();
    for task in fs::read_dir(format!("/proc/{process}/task")).unwrap() {
        let text = fs::read_to_string(task.unwrap().path().join("children")).unwrap_or_default();
        children.extend(text.split_whitespace().map(|pid| pid.parse::<i32>().unwrap()));
    }
    children.sort_unstable();
    children.into_iter().map(Pid::from_raw).collect()
}

fn rest(mut log: BufReader<ChildStderr>, mut said: String) -> String {
    let _ = log.read_to_string(&mut said);
    said
}
