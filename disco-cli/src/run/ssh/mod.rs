//! Runs a script on a host by `ssh`.

mod failure;

use std::io::{self, BufRead as _, BufReader, Read, Write as _};
use std::os::unix::process::CommandExt as _;
use std::process::{Child, ChildStdin, Command, ExitStatus, Stdio};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, anyhow};
use disco::internal::print_line;
use rustix::process::{Pid, WaitId, WaitIdOptions, waitid};

use super::host_list::Host;
use super::script::mark;

/// Options of ssh that make each wait end: nothing asks for a password, and a host that does not answer is given up after
/// 10 s, later after 15 s. Options that stand before them win.
const OPTIONS: [&str; 5] =
    ["-T", "-oBatchMode=yes", "-oConnectTimeout=10", "-oServerAliveInterval=5", "-oLogLevel=ERROR"];
/// Time for the last lines after ssh has ended: another process may hold its output open.
const REST: Duration = Duration::from_millis(300);
/// Longer lines are split.
const MAX_LINE_BYTES: u64 = 64 << 10;

/// How far a script has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Phase {
    /// ssh connects.
    Connecting,
    /// The host's shell executes the script.
    Shell,
    /// The host waits for the program's file.
    Copying,
    /// The program runs.
    Program,
}

impl Phase {
    /// The phase that a line marks, and the rest of the line.
    fn of(line: &[u8]) -> Option<(Self, &str)> {
        let line = std::str::from_utf8(line).ok()?;
        let marks = [(mark::SHELL, Self::Shell), (mark::COPY, Self::Copying), (mark::PROGRAM, Self::Program)];
        marks.into_iter().find_map(|(mark, phase)| Some((phase, line.strip_prefix(mark)?)))
    }
}

/// A script that runs on a host. Dropping it ends ssh, and so the script's input.
pub(super) struct Remote {
    host: Host,
    /// Its name in errors.
    name: String,
    ssh: Child,
    events: Receiver<Event>,
    phase: Phase,
    /// Lines on standard error while ssh connects, or all lines since the script's input is closed.
    held: Vec<(bool, Vec<u8>)>,
    is_closed: bool,
}

enum Event {
    Line {
        is_err: bool,
        line: Vec<u8>,
    },
    /// The script's input is closed.
    Closed,
    /// The process of ssh has ended.
    Ended,
}

/// A step of a script.
pub(super) enum Step {
    /// It has reached this phase.
    Reached(Phase),
    /// Its input is closed.
    Closed,
    /// ssh has ended.
    Ended(ExitStatus),
    /// The time is over.
    Late,
}

impl Remote {
    /// Starts `script` on a host by the command `ssh`, in a process group of its own. `rest` runs on a thread of its own, and
    /// may write to the script's input after the script; the input is closed when it returns.
    ///
    /// # Errors
    /// ssh can't be started.
    pub(super) fn start(
        ssh: &[String],
        host: &Host,
        script: String,
        rest: impl FnOnce(&mut ChildStdin) -> io::Result<()> + Send + 'static,
    ) -> anyhow::Result<Self> {
        let [program, options @ ..] = ssh else { return Err(anyhow!("the command ssh is empty")) };
        let mut command = Command::new(program);
        command.args(options).args(OPTIONS).args(["--", &host.name, "exec /bin/sh"]).process_group(0);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut ssh = command.spawn().with_context(|| {
            format!("host {host}: `{program}` can't be started; install an ssh client, or name another one by --ssh")
        })?;
        let (sender, events) = mpsc::channel();
        let (out, err, input) = (ssh.stdout.take(), ssh.stderr.take(), ssh.stdin.take());
        out.into_iter().for_each(|out| read_lines(out, false, sender.clone()));
        err.into_iter().for_each(|err| read_lines(err, true, sender.clone()));
        if let Some(mut input) = input {
            let sender = sender.clone();
            thread::spawn(move || {
                let written = input.write_all(script.as_bytes()).and_then(|()| rest(&mut input));
                drop(input);
                // A failed write means that ssh has ended.
                written.is_ok().then(|| sender.send(Event::Closed))
            });
        }
        let pid = Pid::from_child(&ssh);
        thread::spawn(move || {
            // Fails only if the process has been waited for.
            _ = rustix::io::retry_on_intr(|| waitid(WaitId::Pid(pid), WaitIdOptions::EXITED | WaitIdOptions::NOWAIT));
            sender.send(Event::Ended)
        });
        Ok(Self {
            host: host.clone(),
            name: format!("host {host}"),
            ssh,
            events,
            phase: Phase::Connecting,
            held: Vec::new(),
            is_closed: false,
        })
    }

    /// Prints the output of the script with the host's name in front. Returns when the script reaches another phase, its input
    /// is closed, ssh ends, or the time `until` has come. Holds the output that comes after the input is closed.
    ///
    /// # Errors
    /// The process of ssh can't be waited for.
    pub(super) fn next(&mut self, until: Option<Instant>) -> anyhow::Result<Step> {
        loop {
            let event = match until.map(|until| until.saturating_duration_since(Instant::now())) {
                Some(left) => self.events.recv_timeout(left),
                None => self.events.recv().map_err(|_| RecvTimeoutError::Disconnected),
            };
            match event {
                Ok(Event::Line { is_err, line }) => {
                    if let Some(phase) = self.take(is_err, line) {
                        return Ok(Step::Reached(phase));
                    }
                }
                Ok(Event::Closed) => {
                    self.is_closed = true;
                    return Ok(Step::Closed);
                }
                Ok(Event::Ended) | Err(RecvTimeoutError::Disconnected) => return self.finish().map(Step::Ended),
                Err(RecvTimeoutError::Timeout) => return Ok(Step::Late),
            }
        }
    }

    /// Handles a line. Returns the phase that it marks.
    fn take(&mut self, is_err: bool, line: Vec<u8>) -> Option<Phase> {
        let reached = if is_err { None } else { Phase::of(&line).filter(|(phase, _)| *phase > self.phase) };
        let Some((phase, ends)) = reached else {
            if is_err && self.phase == Phase::Connecting || self.is_closed {
                self.held.push((is_err, line));
            } else {
                self.print(is_err, &line);
            }
            return None;
        };
        self.phase = phase;
        // Address and port of this end, then of the host. sshd knows none if its connection is no socket.
        if let [here, _, there, _] = ends.split_whitespace().collect::<Vec<_>>()[..]
            && here != "UNKNOWN"
        {
            self.name = format!("{} ({there}, reached from {here})", self.name);
        }
        self.print_held();
        Some(phase)
    }

    fn print_held(&mut self) {
        std::mem::take(&mut self.held).iter().for_each(|(is_err, line)| self.print(*is_err, line));
    }

    fn print(&self, is_err: bool, line: &[u8]) {
        print_line(&format!("host {}", self.host), is_err, line);
    }

    /// The exit status of ssh, which has ended, after its last lines.
    fn finish(&mut self) -> anyhow::Result<ExitStatus> {
        let status = self.ssh.wait().context("ssh can't be waited for")?;
        let end = Instant::now() + REST;
        while let Ok(event) = self.events.recv_timeout(end.saturating_duration_since(Instant::now())) {
            if let Event::Line { is_err, line } = event {
                self.take(is_err, line);
            }
        }
        Ok(status)
    }
}

impl Drop for Remote {
    fn drop(&mut self) {
        // Fails if ssh has ended.
        _ = self.ssh.kill();
        _ = self.ssh.wait();
    }
}

/// Sends the lines of `stream` from a thread of their own.
fn read_lines(stream: impl Read + Send + 'static, is_err: bool, events: Sender<Event>) {
    thread::spawn(move || {
        let mut stream = BufReader::new(stream);
        loop {
            let mut line = Vec::new();
            match stream.by_ref().take(MAX_LINE_BYTES).read_until(b'\n', &mut line) {
                Ok(1..) => {}
                Ok(0) | Err(_) => return,
            }
            if line.ends_with(b"\n") {
                line.pop();
            }
            if events.send(Event::Line { is_err, line }).is_err() {
                return;
            }
        }
    });
}
