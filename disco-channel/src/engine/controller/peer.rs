//! One peer: a worker process or a node.

use std::process::ExitStatus;
use std::time::{Duration, Instant};

use disco_core::WorkerRange;
use disco_core::activity::Progress;
use disco_core::error::{LossCause, ProcessEnd};

use super::event::Conn;
use crate::engine::Liveness;
use crate::engine::credit::Credit;
use crate::engine::fault::{self, Fault};

/// How long after its connection was closed a worker's process may take to end, until the worker is reported without its status.
const STATUS: Duration = Duration::from_millis(500);

/// What peers of a lane are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// Nodes, with one or more workers each.
    Node,
    /// Processes, each of which is a worker.
    Process,
}

/// The process of a peer, as far as it is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Process {
    /// It was started elsewhere, and has not come or can't be watched.
    Unknown,
    /// It was started by this process, with this id.
    Child(u32),
    /// It was started elsewhere.
    Stranger,
    /// It has ended; how is known of children.
    Ended(Option<ExitStatus>),
}

/// One peer.
#[derive(Debug)]
pub(super) struct Peer {
    pub(super) workers: WorkerRange,
    /// What it is called, once it has come.
    pub(super) name: String,
    pub(super) process: Process,
    pub(super) state: State,
    pub(super) liveness: Liveness,
    pub(super) credit: Credit,
    pub(super) progress: Vec<Progress>,
}

/// How far a peer is between its start and its end.
#[derive(Debug)]
pub(super) enum State {
    /// It has not come.
    Expected,
    /// It has come, and not all its workers have started.
    Joined(Conn),
    /// All its workers have started.
    Ready(Conn),
    /// Its connection was closed at this time, or it was clear that there would be none.
    Closed(Instant, Cause),
    /// Its end was reported.
    Reported(Cause),
    /// Its end was reported, and nothing is left of it.
    Gone(Cause),
}

/// Why the connection of a peer is closed.
#[derive(Clone, Debug)]
pub(super) enum Cause {
    /// It never had one.
    Absent,
    /// Its workers have left, but for those named here.
    Left(String),
    /// Its process may tell why.
    Unknown,
    Known(LossCause),
}

impl Peer {
    pub(super) fn new(workers: WorkerRange, name: String, liveness: Liveness) -> Self {
        let progress = vec![Progress::default(); workers.len()];
        let (process, state, credit) = (Process::Unknown, State::Expected, Credit::default());
        Self { workers, name, process, state, liveness, credit, progress }
    }

    /// Its connection, while that is open.
    pub(super) fn conn(&self) -> Option<Conn> {
        if let State::Joined(conn) | State::Ready(conn) = self.state { Some(conn) } else { None }
    }

    /// Why its connection is closed.
    pub(super) fn cause(&self) -> Option<&Cause> {
        match &self.state {
            State::Expected | State::Joined(_) | State::Ready(_) => None,
            State::Closed(_, cause) | State::Reported(cause) | State::Gone(cause) => Some(cause),
        }
    }

    pub(super) fn is_running(&self) -> bool {
        matches!(self.process, Process::Child(_) | Process::Stranger)
    }

    pub(super) fn is_gone(&self) -> bool {
        matches!(self.state, State::Gone(_))
    }

    /// Whether it has left and its process does not concern this lane: another program has started it, and may have plans for it.
    pub(super) fn is_free(&self) -> bool {
        matches!(self.cause(), Some(Cause::Left(_))) && self.process == Process::Stranger
    }

    /// Whether it ended as a peer does that was told to leave.
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

    /// Its connection is closed, or there will be none. Returns the connection if it was open.
    pub(super) fn close(&mut self, cause: Cause, now: Instant) -> Option<Conn> {
        let (conn, cause) = match (&self.state, cause) {
            (State::Expected, Cause::Unknown) => (None, Cause::Absent),
            (State::Expected | State::Joined(_) | State::Ready(_), cause) => (self.conn(), cause),
            _ => return None,
        };
        self.state = State::Closed(now, cause);
        conn
    }

    /// Why it is gone, once that is clear, to be reported now.
    pub(super) fn take_end(&mut self, kind: Kind, now: Instant) -> Option<LossCause> {
        let State::Closed(since, cause) = &self.state else { return None };
        let is_late = now.saturating_duration_since(*since) >= STATUS || fault::is_planted(Fault::NoStatus);
        let why = match (cause, self.process) {
            (Cause::Known(why), _) => why.clone(),
            _ if !self.has_ended(kind) && !is_late => return None,
            (_, Process::Ended(status)) if kind == Kind::Process => {
                let end = status.map_or(ProcessEnd::Unknown, ProcessEnd::from);
                LossCause::ProcessEnded { end, connected: !matches!(cause, Cause::Absent) }
            }
            _ => LossCause::ConnectionClosed,
        };
        self.state = State::Reported(cause.clone());
        Some(why)
    }

    /// Whether its end was reported and now nothing is left of it.
    pub(super) fn take_rest(&mut self, kind: Kind) -> bool {
        match &self.state {
            State::Reported(cause) if self.has_ended(kind) => {
                self.state = State::Gone(cause.clone());
                true
            }
            _ => false,
        }
    }

    /// Whether nothing is left of it but its connection. A node is gone with that.
    fn has_ended(&self, kind: Kind) -> bool {
        kind == Kind::Node || !self.is_running() || self.is_free()
    }

    /// When there is something to look at next.
    pub(super) fn next_timeout(&self) -> Option<Instant> {
        match &self.state {
            State::Joined(_) | State::Ready(_) => self.liveness.next_timeout(),
            State::Closed(since, _) => since.checked_add(STATUS),
            State::Expected | State::Reported(_) | State::Gone(_) => None,
        }
    }
}
