//! The controller's state machine: handles events, and queues writes and actions.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use disco_core::activity::Progress;
use disco_core::error::LossCause;
use disco_core::wire::{Assignment, Welcome};
use disco_core::{Error, Members, WorkerId, WorkerRange};

use super::admission::{NodeTerms, Nodes, Processes, Verdict};
use super::batch::Batch;
use super::event::{Action, Conn, Event, Write};
use super::outbox::Outbox;
use super::peer::{Cause, Kind, Peer, PeerState, Process, garbage};
use super::phase::{Leave, Phase};
use super::side::{NodeSide, ProcessSide, Side};
use crate::clock::MachineClock;
use crate::fault::{self, Fault};
use crate::{Attention, Liveness};

/// The requirements for the peers of a lane, and the configuration that they are sent.
#[allow(
    clippy::exhaustive_enums,
    missing_docs,
    reason = "engine and lane know all variants, whose texts name the fields"
)]
#[derive(Debug)]
pub enum Terms {
    /// Nodes. The engine fills in each node's number and workers.
    Nodes(NodeTerms, Assignment),
    /// Processes with this token, which get `welcome`; the engine fills in each one's place in the ring. They have `start` to
    /// start, and are lost after `silence` without a message.
    Processes { workers: WorkerRange, token: Arc<[u8]>, welcome: Welcome, start: Duration, silence: Duration },
}

/// The controller's end of a lane.
#[derive(Debug)]
pub struct Controller {
    pub(super) side: Side,
    pub(super) start: Duration,
    pub(super) workers: WorkerRange,
    pub(super) peers: Vec<Peer>,
    pub(super) conns: BTreeMap<Conn, usize>,
    pub(super) batch: Batch,
    /// When held packets are sent even if no other packet follows.
    pub(super) held_until: Option<Instant>,
    attention: Attention,
    pub(super) clock: MachineClock,
    pub(super) out: Outbox,
    /// The latest epoch that a worker can be in.
    pub(super) epoch: u64,
    /// The workers of the session, once they have changed.
    pub(super) members: Option<Arc<Members>>,
    pub(super) phase: Phase,
    pub(super) leave: Leave,
    /// The workers that did not leave; `Some` once the lane is closed.
    pub(super) stuck: Option<Vec<String>>,
    /// The reactor thread has to be told of an earlier timeout.
    pub(super) has_new_timeout: bool,
}

impl Controller {
    /// Makes a lane that starts `now`.
    pub fn new(terms: Terms, now: Instant) -> Self {
        match terms {
            Terms::Nodes(terms, assignment) => {
                let Assignment { workers, start, heartbeat, silence, .. } = assignment;
                let liveness = Liveness::new(heartbeat, silence, now);
                let (first_node, forest) = terms.shape();
                let side = NodeSide {
                    first_node,
                    per_node: terms.per_node,
                    depth: forest.depth(),
                    behind: BTreeMap::new(),
                    assignment,
                    admission: Some(Box::new(Nodes::new(terms))),
                };
                let peer = |(place, size): (usize, usize)| {
                    let name = side.admission.as_ref().map(|nodes| nodes.terms.name(side.number(place), None));
                    let workers = side.workers_of(workers, place, size);
                    Peer::new(workers, name.unwrap_or_default(), (place, size as u32 - 1), liveness.clone())
                };
                let peers = forest.children().map(peer).collect();
                Self::with(Side::Nodes(side), peers, workers, (start, silence), now)
            }
            Terms::Processes { workers, token, welcome, start, silence } => {
                let liveness = Liveness::new(Duration::MAX, silence, now);
                let peer = |(place, worker): (usize, WorkerId)| {
                    Peer::new(worker.into(), worker.to_string(), (place, 0), liveness.clone())
                };
                let peers = workers.iter().enumerate().map(peer).collect();
                let side = ProcessSide { admission: Some(Processes::new(token)), welcome, watches: true };
                Self::with(Side::Processes(side), peers, workers, (start, silence), now)
            }
        }
    }

    /// A lane with these peers, which have to start within `start`, and whose silence is limited.
    fn with(
        side: Side,
        peers: Vec<Peer>,
        workers: WorkerRange,
        (start, silence): (Duration, Duration),
        now: Instant,
    ) -> Self {
        Self {
            side,
            start,
            workers,
            batch: Batch::new(peers.len()),
            peers,
            held_until: None,
            conns: BTreeMap::new(),
            attention: Attention::new(silence, now),
            clock: MachineClock::since(now),
            out: Outbox::default(),
            epoch: 0,
            members: None,
            phase: Phase::Starting(now),
            leave: Leave::No,
            stuck: None,
            has_new_timeout: false,
        }
    }

    /// Handles an event.
    pub fn handle(&mut self, event: Event, now: Instant) {
        self.excuse_after_stall(&event, now);
        match event {
            Event::Opened(conn, origin) => self.open(conn, origin, now),
            Event::Closed(why) => self.stop_accepting(why, now),
            Event::Bytes(conn, bytes) => {
                if let Some(nodes) = self.side.admission_of_nodes() {
                    nodes.bytes(conn, &bytes, now, &mut self.out);
                }
            }
            Event::Message(conn, message) => match self.conns.get(&conn) {
                Some(peer) => self.receive(*peer, conn, message, now),
                None => self.admit(conn, message, now),
            },
            Event::PartReceived(conn) => {
                if let Some(index) = self.conns.get(&conn) {
                    self.peers[*index].liveness.received(now);
                }
            }
            Event::InvalidMessage(conn, error) => match self.conns.get(&conn) {
                Some(index) => self.close(*index, Cause::Known(garbage(&error)), now),
                None => self.lose(conn, error, now),
            },
            Event::Hung(conn, why) => self.hung(conn, why, now),
            Event::Full(conn, unread) => self.cut(conn, LossCause::Unread(unread), now),
            Event::Unacknowledged(conn, bytes) => self.cut(conn, LossCause::Unacknowledged(bytes), now),
            Event::Started(place, child) => {
                self.set_process(place, child.map_or(Process::Foreign, Process::Child));
                if self.phase == (Phase::Ending { kill: None }) {
                    self.kill_all();
                }
            }
            Event::Ended(place, status) => {
                self.set_process(place, Process::Ended(status));
                match self.side.kind() {
                    // Its end of the connection may be held open by another process, so it is closed here.
                    Kind::Process => self.close(place, Cause::Unknown, now),
                    Kind::Node => self.give_up_without(place, status, now),
                }
                self.end_if_over(now);
            }
            Event::Accused(place, why) => {
                if let Some(index) = self.peer_at(place) {
                    self.close(index, Cause::Known(why), now);
                }
            }
            Event::Signal(signal) => self.signal(signal),
            Event::Close(limit) => self.begin_to_close(limit, now),
            Event::Dropped => self.end_dropped(now),
            Event::Broken(why) => self.break_off(&why, now),
            Event::Timer => self.on_timer(now),
        }
    }

    /// Restarts the silence timeouts if this machine, or the reactor thread, has not run for a while.
    fn excuse_after_stall(&mut self, event: &Event, now: Instant) {
        // Other threads than the reactor bring these events, so they do not show that the reactor runs.
        let is_heard = !matches!(
            event,
            Event::Signal(_) | Event::Close(_) | Event::Dropped | Event::Full(..) | Event::Accused(..)
        );
        if is_heard && self.attention.check(now) && !fault::is_planted(Fault::NoExcuse) {
            self.peers.iter_mut().for_each(|peer| peer.liveness.excuse(now));
            if let Some(nodes) = self.side.admission_of_nodes() {
                nodes.excuse(now);
            }
        }
    }

    /// A connection was closed by the other end, or has failed.
    fn hung(&mut self, conn: Conn, why: Option<String>, now: Instant) {
        if let Some(index) = self.conns.get(&conn) {
            let cause = why.map_or(Cause::Unknown, |why| Cause::Known(LossCause::ConnectionFailed(why)));
            return self.close(*index, cause, now);
        }
        let why = why.map_or_else(
            || "it closed the connection without a message".into(),
            |why| format!("its connection failed: {why}"),
        );
        self.lose(conn, Error::protocol(why), now);
    }

    /// The next packet, to be written now by the thread that has brought the event.
    pub fn next_write(&mut self) -> Option<Write> {
        self.out.writes.pop_front()
    }

    /// The next action for the reactor thread.
    pub fn next_action(&mut self) -> Option<Action> {
        self.out.actions.pop_front()
    }

    /// Whether the reactor thread has to be woken, for an action or an earlier timeout.
    pub fn take_wake(&mut self) -> bool {
        let has_new_timeout = std::mem::take(&mut self.has_new_timeout) && !fault::is_planted(Fault::MissedWake);
        has_new_timeout || !self.out.actions.is_empty()
    }

    /// When [`Event::Timer`] is due.
    pub fn next_timeout(&self) -> Option<Instant> {
        if self.phase == Phase::Over {
            return None;
        }
        let admission = match &self.side {
            Side::Nodes(side) => side.admission.as_ref().and_then(|nodes| nodes.next_timeout()),
            Side::Processes(side) => side.admission.as_ref().and_then(Processes::next_timeout),
        };
        let peers = self.peers.iter().filter_map(Peer::next_timeout);
        let (batch, attention) = (self.batch.deadline(), self.attention.next_timeout());
        let others = [admission, batch, self.held_until, self.phase_timeout(), attention];
        peers.chain(others.into_iter().flatten()).min()
    }

    /// Whether connections are to be accepted.
    pub fn accepts(&self) -> bool {
        match &self.side {
            Side::Nodes(side) => side.admission.as_ref().is_some_and(|nodes| nodes.accepts()),
            Side::Processes(side) => side.admission.is_some(),
        }
    }

    /// The workers of all peers.
    pub fn workers(&self) -> WorkerRange {
        self.workers
    }

    /// Limit for the bytes of the values of one command or reply.
    pub(crate) fn value_limit(&self) -> usize {
        self.side.value_limit()
    }

    /// The connection of the peer in a place.
    pub fn conn(&self, place: usize) -> Option<Conn> {
        self.peers[self.peer_at(place)?].conn()
    }

    /// The peer in a place; `None` if the node there is behind a peer.
    pub(super) fn peer_at(&self, place: usize) -> Option<usize> {
        self.peers.binary_search_by_key(&place, |peer| peer.place).ok()
    }

    fn set_process(&mut self, place: usize, process: Process) {
        match self.peer_at(place) {
            Some(peer) => self.peers[peer].process = process,
            None => {
                if let Side::Nodes(side) = &mut self.side {
                    side.behind.get_mut(&place).into_iter().for_each(|behind| behind.process = process);
                }
            }
        }
    }

    /// The connection of the peer of a worker.
    pub fn conn_of(&self, worker: WorkerId) -> Option<Conn> {
        self.place(worker).and_then(|(peer, _)| self.peers[peer].conn())
    }

    /// The progress of a worker.
    pub fn progress(&self, worker: WorkerId) -> Progress {
        self.place(worker).map(|(peer, at)| self.peers[peer].progress[at].clone()).unwrap_or_default()
    }

    /// The peer of a worker, and the worker's index in it.
    pub(super) fn place(&self, worker: WorkerId) -> Option<(usize, usize)> {
        let peer = self.peers.partition_point(|peer| peer.workers.first() <= worker).checked_sub(1)?;
        self.peers[peer].workers.position(worker).map(|at| (peer, at))
    }

    /// Whether some peer has not started yet.
    pub fn is_starting(&self) -> bool {
        matches!(self.phase, Phase::Starting(_))
    }

    /// Ends the start once all workers of all peers have started.
    pub(super) fn start_if_ready(&mut self) {
        let is_ready = self.peers.iter().all(|peer| matches!(peer.state, PeerState::Ready(_)));
        if is_ready && let Phase::Starting(_) = self.phase {
            if self.side.kind() == Kind::Process {
                self.end_admission(None);
            }
            self.phase = Phase::Running;
            self.out.act(Action::Started(Ok(())));
        }
    }

    /// Handles timeouts and heartbeats.
    fn on_timer(&mut self, now: Instant) {
        self.send_expired(now);
        if self.held_until.take_if(|until| now >= *until).is_some() {
            self.out.act(Action::Flush);
        }
        match &mut self.side {
            Side::Nodes(side) => {
                if let Some(nodes) = &mut side.admission
                    && nodes.on_timer(now, &mut self.out)
                    && let Some(grown) = nodes.grow(&mut self.out)
                {
                    self.assign(grown, now);
                }
            }
            Side::Processes(_) => {
                while let Side::Processes(ProcessSide { admission: Some(processes), .. }) = &mut self.side
                    && let Some(Verdict::Refused { pid, worker, error }) = processes.expire(now, &mut self.out)
                {
                    self.reject(pid, worker, &error, now);
                }
            }
        }
        for index in 0..self.peers.len() {
            let peer = &mut self.peers[index];
            let Some(conn) = peer.conn() else {
                self.report(index, now);
                continue;
            };
            if peer.liveness.must_send(now) {
                self.send_heartbeat(index, conn, now);
            }
            if let Some(limit) = self.peers[index].liveness.is_silent(now) {
                self.close(index, Cause::Known(LossCause::Silent(limit)), now);
            }
        }
        if let Phase::Starting(_) = self.phase
            && self.phase_timeout().is_some_and(|end| now >= end)
        {
            self.give_up(&self.late(), now);
        }
        self.go_on_closing(now);
        self.end_if_over(now);
    }

    fn late(&self) -> Error {
        let missing = |is_missing: fn(&&Peer) -> bool| {
            let missing: Vec<&str> = self.peers.iter().filter(is_missing).map(|peer| peer.name.as_str()).collect();
            missing.join(", ")
        };
        let state = match &self.side {
            Side::Nodes(NodeSide { admission: Some(nodes), .. }) if !nodes.has_started() => nodes.missing(),
            Side::Processes(ProcessSide { admission: Some(_), .. }) => {
                format!("{} did not connect", missing(|peer| matches!(peer.state, PeerState::Expected)))
            }
            _ => format!("{} did not start all workers", missing(|peer| !matches!(peer.state, PeerState::Ready(_)))),
        };
        Error::Deadline { operation: "start".into(), after: self.start, state }
    }
}
