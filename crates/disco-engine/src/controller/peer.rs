//! One peer: a worker process or a node.

use std::fmt;
use std::process::ExitStatus;
use std::time::{Duration, Instant};

use disco_core::activity::Progress;
use disco_core::error::{LossCause, ProcessEnd};
use disco_core::{Error, Result, WorkerRange};

use super::event::Conn;
use crate::Liveness;
use crate::clock::Estimate;
use crate::credit::Credit;
use crate::fault::{self, Fault};

/// Time to wait for the exit status of a process whose connection was closed, before its worker is reported lost
/// without it.
const EXIT_STATUS_GRACE: Duration = Duration::from_millis(500);

/// The kind of a lane's peers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// Nodes, with one or more workers each.
    Node,
    /// Processes, each of which is a worker.
    Process,
}

/// The process of a peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Process {
    /// Started elsewhere and not connected yet, or it can't be watched.
    Unknown,
    /// Started by this process, with this id.
    Child(u32),
    /// Started elsewhere.
    Foreign,
    /// It has ended. The status is known for children only.
    Ended(Option<ExitStatus>),
}

impl Process {
    pub(super) fn is_running(self) -> bool {
        matches!(self, Self::Child(_) | Self::Foreign)
    }
}

/// A worker process or a node.
#[derive(Debug)]
pub(super) struct Peer {
    /// Its workers, and those of the nodes behind it.
    pub(super) workers: WorkerRange,
    /// The peer's name in messages.
    pub(super) name: String,
    /// The place of the peer among all nodes below this end, or among the processes.
    pub(super) place: usize,
    /// Number of nodes behind this one.
    pub(super) behind: u32,
    pub(super) process: Process,
    pub(super) state: PeerState,
    pub(super) liveness: Liveness,
    /// The alignment of a node's clock with the one here.
    pub(super) clock: Estimate,
    /// It was silent when it had to leave, so its workers may still run.
    pub(super) is_unanswered: bool,
    pub(super) credit: Credit,
    pub(super) progress: Vec<Progress>,
    /// When the progress of each worker changed last.
    pub(super) changed: Vec<Option<Instant>>,
    /// The process id and the thread id of a worker that is a process.
    pub(super) ids: Option<(u32, u32)>,
}

/// The state of a peer between its start and its end.
#[derive(Debug)]
pub(super) enum PeerState {
    /// It has not joined.
    Expected,
    /// It has joined, and not all its workers have started.
    Starting(Conn),
    /// All its workers have started.
    Ready(Conn),
    /// Its connection was closed at this time, or it ended without having had one.
    Closed(Instant, Cause),
    /// Its end was reported.
    Reported(Cause),
    /// Its end was reported, and its process has ended.
    Ended(Cause),
}

/// Why the connection of a peer is closed.
#[derive(Clone, Debug)]
pub(super) enum Cause {
    /// There never was a connection.
    Absent,
    /// Its workers have left, except those named here.
    Left(String),
    /// Unknown until the exit status of its process is.
    Unknown,
    Known(LossCause),
}

impl fmt::Display for Cause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Absent => f.write_str("it has never connected"),
            Self::Left(stuck) if stuck.is_empty() => f.write_str("its workers have left"),
            Self::Left(stuck) => write!(f, "its workers have left except {stuck}"),
            Self::Unknown => f.write_str("the reason is known once its process has ended"),
            Self::Known(why) => why.fmt(f),
        }
    }
}

impl Peer {
    pub(super) fn new(workers: WorkerRange, name: String, (place, behind): (usize, u32), liveness: Liveness) -> Self {
        let (progress, changed) = (vec![Progress::default(); workers.len()], vec![None; workers.len()]);
        let (process, state, credit) = (Process::Unknown, PeerState::Expected, Credit::default());
        Self {
            workers,
            name,
            place,
            behind,
            process,
            state,
            liveness,
            clock: Estimate::default(),
            is_unanswered: false,
            credit,
            progress,
            changed,
            ids: None,
        }
    }

    /// The connection, while it is open.
    pub(super) fn conn(&self) -> Option<Conn> {
        if let PeerState::Starting(conn) | PeerState::Ready(conn) = self.state { Some(conn) } else { None }
    }

    /// Why the connection is closed.
    pub(super) fn cause(&self) -> Option<&Cause> {
        match &self.state {
            PeerState::Expected | PeerState::Starting(_) | PeerState::Ready(_) => None,
            PeerState::Closed(_, cause) | PeerState::Reported(cause) | PeerState::Ended(cause) => Some(cause),
        }
    }

    pub(super) fn is_running(&self) -> bool {
        self.process.is_running()
    }

    pub(super) fn has_ended(&self) -> bool {
        matches!(self.state, PeerState::Ended(_))
    }

    /// Whether the peer has left and its process, which another program has started, may go on.
    pub(super) fn is_free(&self) -> bool {
        matches!(self.cause(), Some(Cause::Left(_))) && self.process == Process::Foreign
    }

    /// Whether the peer ended as it should after it was told to leave.
    pub(super) fn is_clean(&self, kind: Kind) -> bool {
        let succeeded = |status: ExitStatus| status.success();
        match self.cause() {
            Some(Cause::Left(_)) if kind == Kind::Node => true,
            Some(Cause::Left(_) | Cause::Absent | Cause::Unknown) if kind == Kind::Process => {
                if let Process::Ended(Some(status)) = self.process { succeeded(status) } else { true }
            }
            _ => false,
        }
    }

    /// Marks the peer as closed. Returns the connection if it was open.
    pub(super) fn close(&mut self, cause: Cause, now: Instant) -> Option<Conn> {
        let (conn, cause) = match (&self.state, cause) {
            (PeerState::Expected, Cause::Unknown) => (None, Cause::Absent),
            (PeerState::Expected | PeerState::Starting(_) | PeerState::Ready(_), cause) => (self.conn(), cause),
            _ => return None,
        };
        self.state = PeerState::Closed(now, cause);
        conn
    }

    /// Returns the cause of the peer's end, once, when it is known and has to be reported.
    pub(super) fn take_end(&mut self, kind: Kind, now: Instant) -> Option<LossCause> {
        let PeerState::Closed(since, cause) = &self.state else { return None };
        let is_overdue = now.saturating_duration_since(*since) >= EXIT_STATUS_GRACE;
        let is_overdue = is_overdue || fault::is_planted(Fault::NoStatus);
        let why = match (cause, self.process) {
            (Cause::Known(why), _) => why.clone(),
            _ if !self.is_process_over(kind) && !is_overdue => return None,
            (_, Process::Ended(status)) if kind == Kind::Process => {
                let end = status.map_or(ProcessEnd::Unknown, ProcessEnd::from);
                LossCause::ProcessEnded { end, connected: !matches!(cause, Cause::Absent) }
            }
            _ => LossCause::ConnectionClosed,
        };
        let cause = match cause {
            // A node has no exit status that would explain its end later.
            Cause::Unknown if kind == Kind::Node => Cause::Known(why.clone()),
            cause => cause.clone(),
        };
        self.state = PeerState::Reported(cause);
        Some(why)
    }

    /// Marks a reported peer as ended if its process has. Returns whether it did.
    pub(super) fn take_rest(&mut self, kind: Kind) -> bool {
        match &self.state {
            PeerState::Reported(cause) if self.is_process_over(kind) => {
                self.state = PeerState::Ended(cause.clone());
                true
            }
            _ => false,
        }
    }

    /// Whether the process has ended or does not matter. A node ends with its connection.
    fn is_process_over(&self, kind: Kind) -> bool {
        kind == Kind::Node || !self.is_running() || self.is_free()
    }

    /// Records frames that are sent.
    pub(super) fn use_credit(&mut self, frames: u64, bytes: usize) {
        self.credit.use_up(frames, bytes);
        self.liveness.set_extra(self.credit.decode_time());
    }

    /// Records the total frames and bytes that the peer has acknowledged.
    ///
    /// # Errors
    /// More than were sent.
    pub(super) fn acknowledge(&mut self, frames: u64, bytes: u64) -> Result<()> {
        self.credit.acknowledge(frames, bytes)?;
        self.liveness.set_extra(self.credit.decode_time());
        Ok(())
    }

    /// Records the progress of worker `at`, which came last.
    pub(super) fn note_progress(&mut self, at: usize, progress: Progress) {
        if self.progress[at] != progress {
            self.changed[at] = Some(self.liveness.last_received());
            self.progress[at] = progress;
        }
    }

    /// When the silence timeout, heartbeat or wait for the exit status is due next.
    pub(super) fn next_timeout(&self) -> Option<Instant> {
        match &self.state {
            PeerState::Starting(_) | PeerState::Ready(_) => self.liveness.next_timeout(),
            PeerState::Closed(since, _) => since.checked_add(EXIT_STATUS_GRACE),
            PeerState::Expected | PeerState::Reported(_) | PeerState::Ended(_) => None,
        }
    }
}

/// The loss cause of a peer that broke the protocol, or whose message this end has no memory for.
pub(super) fn garbage(error: &Error) -> LossCause {
    if let Error::OutOfMemory { .. } = error {
        return LossCause::Other(format!("its message can't be received: {error}"));
    }
    LossCause::ProtocolViolation(format!("it sent garbage: {error}"))
}
