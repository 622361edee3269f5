//! One peer: a worker process or a node.

use std::process::ExitStatus;
use std::time::{Duration, Instant};

use disco_core::WorkerRange;
use disco_core::activity::Progress;
use disco_core::error::{LossCause, ProcessEnd};

use super::event::Conn;
use crate::engine::Liveness;
use crate::engine::credit::Credit;

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
    /// Its connection, while that is open.
    pub(super) conn: Option<Conn>,
    pub(super) has_come: bool,
    /// All its workers have started.
    pub(super) is_ready: bool,
    pub(super) liveness: Liveness,
    pub(super) credit: Credit,
    pub(super) progress: Vec<Progress>,
    /// Its workers have left, but for those named here.
    pub(super) left: Option<String>,
    /// It was given up because it was silent: it may be frozen, and then does not end by itself.
    pub(super) is_silent: bool,
    /// When its connection was closed, or it was clear that there will be none; and why, if that is known.
    pub(super) closed: Option<(Instant, Option<LossCause>)>,
    /// Its end was reported.
    pub(super) is_over: bool,
    /// Nothing is left of it.
    pub(super) is_gone: bool,
}

impl Peer {
    pub(super) fn new(workers: WorkerRange, name: String, liveness: Liveness) -> Self {
        let progress = vec![Progress::default(); workers.len()];
        Self {
            workers,
            name,
            process: Process::Unknown,
            conn: None,
            has_come: false,
            is_ready: false,
            liveness,
            credit: Credit::default(),
            progress,
            left: None,
            is_silent: false,
            closed: None,
            is_over: false,
            is_gone: false,
        }
    }

    pub(super) fn is_running(&self) -> bool {
        matches!(self.process, Process::Child(_) | Process::Stranger)
    }

    /// Whether it has left and its process does not concern this lane: another program has started it, and may have plans for it.
    pub(super) fn is_free(&self) -> bool {
        self.left.is_some() && self.process == Process::Stranger
    }

    /// Whether its process ended as a worker does that was told to leave.
    pub(super) fn is_clean(&self) -> bool {
        let is_silent = self.closed.as_ref().is_none_or(|(_, why)| why.is_none());
        let succeeded = |status: ExitStatus| status.success();
        is_silent && if let Process::Ended(Some(status)) = self.process { succeeded(status) } else { true }
    }

    /// Why it is gone, once that is clear. A node is gone with its connection.
    pub(super) fn why(&self, kind: Kind, now: Instant) -> Option<LossCause> {
        let (since, why) = self.closed.as_ref()?;
        let is_late = now.saturating_duration_since(*since) >= STATUS;
        let has_ended = kind == Kind::Node || !self.is_running() || self.is_free();
        if !has_ended && why.is_none() && !is_late {
            return None;
        }
        Some(match (why, self.process) {
            (Some(why), _) => why.clone(),
            (None, Process::Ended(status)) if kind == Kind::Process => {
                let end = status.map_or(ProcessEnd::Unknown, ProcessEnd::from);
                LossCause::ProcessEnded { end, connected: self.has_come }
            }
            (None, _) => LossCause::ConnectionClosed,
        })
    }

    /// When there is something to look at next.
    pub(super) fn next_timeout(&self) -> Option<Instant> {
        match &self.closed {
            None => self.conn.and_then(|_| self.liveness.next_timeout()),
            Some(_) if self.is_over => None,
            Some((since, _)) => since.checked_add(STATUS),
        }
    }
}
