//! The controller's end of one connection, to a process or a node of TVM. Never blocks.

use std::collections::VecDeque;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Instant;

use disco_core::channel::{Progress, Reply};
use disco_core::error::{ErrorKind, Failure, LossCause};
use disco_core::wire::tvm::{self, Envelope, EnvelopeAction};
use disco_core::wire::{Packet, decode_reply};
use disco_core::{Command, Result, WorkerId, WorkerRange};
use rustix::io::Errno;
use rustix::net::{self, RecvFlags, SendFlags, Shutdown};

use super::packets::{Packets, packet_limit};
use super::translate::{Outgoing, Owed, Then};
use crate::remote::process::Process;

/// Reads of one turn, so that other connections have theirs.
const MAX_READS_PER_TURN: usize = 16;
/// Bytes of one read.
const READ_BYTES: usize = 64 << 10;

/// Name of the function that a worker counts as inside while it owes a reply.
const INSIDE: &str = "a command of TVM";

/// A connection to one process with one worker, or to one node.
#[derive(Debug)]
pub(super) struct Connection {
    pub(super) workers: WorkerRange,
    pub(super) socket: Arc<OwnedFd>,
    /// The process at the other end, if this program has started it.
    pub(super) process: Option<Process>,
    /// Whether the other end is a node, whose packets have envelopes.
    is_node: bool,
    out: VecDeque<Chunk>,
    /// Bytes of the first chunk that were sent.
    sent: usize,
    /// Unsent bytes.
    pub(super) queued: usize,
    packets: Packets,
    /// In the order in which replies arrive.
    owed: VecDeque<Owed>,
    /// Workers that have not answered the first command.
    pub(super) starting: usize,
    /// Number of the last command sent, and of the last reply.
    progress: (u64, u64),
    /// Bytes sent and received.
    moved: u64,
    pub(super) shutdown: ShutdownState,
    /// When the other end closed the connection.
    pub(super) closed: Option<Instant>,
    /// When the process was seen to have ended.
    pub(super) ended: Option<Instant>,
    pub(super) violation: Option<String>,
    /// Whether the end was reported.
    pub(super) is_over: bool,
}

/// Bytes that are sent together.
#[derive(Debug)]
struct Chunk {
    bytes: Arc<[u8]>,
    seq: u64,
    /// Whether the last of `owed` belongs to this chunk.
    owes: bool,
}

/// Whether the other end was told to end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ShutdownState {
    /// No.
    Running,
    /// After all commands, so it has to end with success.
    AfterCommands,
    /// Ahead of commands, or by a signal.
    Now,
}

/// A reply, or the end of a start.
#[derive(Debug)]
pub(super) struct Arrived {
    pub(super) owed: Owed,
    pub(super) reply: Reply,
}

impl Connection {
    /// A connection to the process of one worker, or to a node.
    pub(super) fn new(
        workers: WorkerRange,
        socket: OwnedFd,
        process: Option<Process>,
        is_node: bool,
        value_limit: usize,
    ) -> Self {
        Self {
            workers,
            socket: Arc::new(socket),
            process,
            is_node,
            out: VecDeque::new(),
            sent: 0,
            queued: 0,
            packets: Packets::new(packet_limit(value_limit)),
            owed: VecDeque::new(),
            starting: workers.len(),
            progress: (0, 0),
            moved: 0,
            shutdown: ShutdownState::Running,
            closed: None,
            ended: None,
            violation: None,
            is_over: false,
        }
    }

    /// Whether packets can still reach the other end.
    pub(super) fn is_open(&self) -> bool {
        !self.is_over && self.closed.is_none() && self.ended.is_none() && self.violation.is_none()
    }

    /// Whether unsent bytes wait for the other end to read.
    pub(super) fn has_unsent(&self) -> bool {
        self.is_open() && !self.out.is_empty()
    }

    /// Number of unsent packets.
    pub(super) fn unsent(&self) -> usize {
        if self.is_open() { self.out.len() } else { 0 }
    }

    /// Queues the first packet to a node.
    pub(super) fn introduce(&mut self, packet: Vec<u8>) {
        self.queue(packet.into(), 0, false);
    }

    /// Queues a packet of command `seq`.
    ///
    /// # Errors
    /// The packet is not valid.
    pub(super) fn push(&mut self, seq: u64, packet: Outgoing) -> Result<()> {
        if !self.is_open() || self.shutdown != ShutdownState::Running {
            return Ok(());
        }
        let Outgoing { to, bytes, owed } = packet;
        let Some(owed) = owed else {
            let bytes =
                if self.is_node { envelope(EnvelopeAction::Send, to).wrap(Some(&bytes))?.into() } else { bytes };
            self.queue(bytes, seq, false);
            return Ok(());
        };
        if self.is_node {
            self.queue(envelope(EnvelopeAction::Send, to).wrap(Some(&bytes))?.into(), seq, false);
            self.owed.push_back(owed);
            self.queue(envelope(EnvelopeAction::Receive, to).wrap(None)?.into(), seq, true);
        } else {
            self.owed.push_back(owed);
            self.queue(bytes, seq, true);
        }
        Ok(())
    }

    /// Queues ShutDown. Drops unsent commands before it unless `after_commands`.
    ///
    /// # Errors
    /// Never: the packet is valid.
    pub(super) fn shut_down(&mut self, after_commands: bool) -> Result<()> {
        if !after_commands {
            let begun = usize::from(self.sent > 0);
            while self.out.len() > begun
                && let Some(chunk) = self.out.pop_back()
            {
                self.queued -= chunk.bytes.len();
                if chunk.owes {
                    self.owed.pop_back();
                }
            }
        }
        if self.shutdown == ShutdownState::Running && self.is_open() {
            let packet = if self.is_node {
                Envelope::to_all(EnvelopeAction::Shutdown).wrap(None)?
            } else {
                tvm::encode(&Command::Shutdown)?
            };
            self.queue(packet.into(), self.progress.0, false);
        }
        self.shutdown = match (self.shutdown, after_commands) {
            (ShutdownState::Running | ShutdownState::AfterCommands, true) => ShutdownState::AfterCommands,
            _ => ShutdownState::Now,
        };
        Ok(())
    }

    fn queue(&mut self, bytes: Arc<[u8]>, seq: u64, owes: bool) {
        self.queued += bytes.len();
        self.out.push_back(Chunk { bytes, seq, owes });
    }

    /// Sends as many bytes as the other end takes now. After ShutDown was sent to a process, closes this direction. A node takes the
    /// end of this direction for the loss of its controller, and may owe replies.
    pub(super) fn flush(&mut self) {
        while let Some(chunk) = self.out.front().filter(|_| self.is_open()) {
            let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
            match net::send(&*self.socket, &chunk.bytes[self.sent..], flags) {
                Ok(count) => {
                    self.sent += count;
                    self.queued -= count;
                    self.moved += count as u64;
                }
                Err(Errno::INTR) => continue,
                Err(Errno::AGAIN) => return,
                // The other end is gone, which reading reports, after the replies that it sent before.
                Err(_) => {
                    self.out.clear();
                    (self.sent, self.queued) = (0, 0);
                    return;
                }
            }
            if self.sent == chunk.bytes.len() {
                self.progress.0 = chunk.seq;
                self.sent = 0;
                self.out.pop_front();
                if self.out.is_empty() && self.shutdown != ShutdownState::Running && !self.is_node {
                    // Fails only if the other end is gone.
                    _ = net::shutdown(&*self.socket, Shutdown::Write);
                }
            }
        }
    }

    /// Reads the bytes that have arrived. Notes the end of the connection, and garbage.
    pub(super) fn read(&mut self, arrived: &mut Vec<Arrived>) {
        let mut chunk = [0; READ_BYTES];
        for _ in 0..MAX_READS_PER_TURN {
            if self.closed.is_some() || self.violation.is_some() {
                return;
            }
            match net::recv(&*self.socket, &mut chunk[..], RecvFlags::DONTWAIT) {
                Ok((0, _)) | Err(Errno::CONNRESET | Errno::PIPE) => self.closed = Some(Instant::now()),
                Ok((count, _)) => {
                    self.moved += count as u64;
                    self.packets.put(&chunk[..count]);
                    self.take_packets(arrived);
                }
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => return,
                Err(errno) => self.violation = Some(format!("its connection failed: {}", io::Error::from(errno))),
            }
        }
    }

    fn take_packets(&mut self, arrived: &mut Vec<Arrived>) {
        loop {
            match self.packets.take().map_err(|error| error.to_string()).and_then(|packet| {
                let Some(packet) = packet else { return Ok(None) };
                self.take_reply(&packet[Packet::PREFIX..]).map(Some)
            }) {
                Ok(Some(reply)) => arrived.push(reply),
                Ok(None) => return,
                Err(why) => {
                    self.violation = Some(format!("it sent garbage: {why}"));
                    return;
                }
            }
        }
    }

    fn take_reply(&mut self, content: &[u8]) -> Result<Arrived, String> {
        let owed = self.owed.pop_front().ok_or("a packet that answers no command")?;
        let name = owed.command.name();
        match tvm::first_number(content) {
            Some(number) if tvm::is_reply_to(number, &owed.command) => {}
            Some(number) => return Err(format!("a reply with number {number} to `{name}`")),
            None => return Err(format!("a reply without a number to `{name}`")),
        }
        self.progress.1 = owed.seq;
        self.starting -= usize::from(matches!(owed.then, Then::Start));
        // The packet is complete, so a value that can't be read is an error of this command only.
        let reply = Packet::read(content).and_then(decode_reply).unwrap_or_else(|error| {
            let message = format!("the reply of TVM's worker can't be read: {error}");
            Err(Arc::new(failure(&owed, message, ErrorKind::Protocol)))
        });
        Ok(Arrived { owed, reply })
    }

    /// The progress of a worker of this connection.
    pub(super) fn progress(&self, worker: WorkerId) -> Progress {
        let mut progress = Progress::new(self.progress.0, self.progress.1);
        progress.moved = self.moved;
        let owes = self.owed.iter().any(|owed| owed.worker == worker);
        if owes && self.out.is_empty() {
            progress.inside = Some(INSIDE.into());
        }
        progress
    }

    /// Notes the end of the process.
    pub(super) fn reap(&mut self) {
        let Some(process) = &mut self.process else { return };
        if let Err(error) = process.reap() {
            tracing::warn!(%error, workers = %self.workers, "the exit status of a process of TVM is unknown");
        }
        if process.has_ended() {
            self.ended.get_or_insert_with(Instant::now);
        }
    }

    /// Kills the process, or closes the connection to the node.
    pub(super) fn kill(&self) {
        let killed = self.process.as_ref().map_or(Ok(()), Process::kill);
        if let Err(error) = killed {
            tracing::warn!(%error, workers = %self.workers, "a process of TVM can't be killed");
        }
        _ = net::shutdown(&*self.socket, Shutdown::Both);
    }

    /// Why the workers are lost.
    pub(super) fn loss(&self) -> LossCause {
        if let Some(why) = &self.violation {
            return LossCause::ProtocolViolation(why.clone());
        }
        match &self.process {
            Some(process) if process.has_ended() => {
                let end = process.status().map_or(disco_core::error::ProcessEnd::Unknown, Into::into);
                LossCause::ProcessEnded { end, connected: true }
            }
            _ => LossCause::ConnectionClosed,
        }
    }
}

/// A failure of the command that owed a reply.
pub(super) fn failure(owed: &Owed, message: String, kind: ErrorKind) -> Failure {
    Failure {
        worker: owed.worker,
        command: owed.seq,
        operation: match owed.then {
            Then::CopyTo(_) => "copy_from_worker_0".to_owned(),
            _ => owed.command.name().to_owned(),
        },
        register: None,
        message,
        causes: Vec::new(),
        aborted: false,
        kind,
        user: None,
    }
}

fn envelope(action: EnvelopeAction, to: Option<WorkerId>) -> Envelope {
    Envelope { action, worker: to }
}
