//! The state machine: events in, writes and actions out.

use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

use disco_core::activity::Progress;
use disco_core::error::{LossCause, LostPeer};
use disco_core::wire::{Assignment, Message, Welcome};
use disco_core::{Error, Result, WorkerId, WorkerRange};

use super::admission::{Joined, NodeTerms, Nodes, Processes, Verdict};
use super::batch::Batch;
use super::closing::{Leave, Phase};
use super::event::{Action, Conn, Event, Order, Origin, Write};
use super::hear::garbage;
use super::outbox::Outbox;
use super::peer::{Cause, Kind, Peer, Process, State};
use crate::engine::fault::{self, Fault};
use crate::engine::limits::packet_limit;
use crate::engine::{Attention, Liveness};

/// What the peers of a lane have to match, and what they are told.
#[derive(Debug)]
pub(crate) enum Terms {
    /// Nodes; which one a node is, and which workers it has, is its own.
    Nodes(NodeTerms, Assignment),
    /// Processes that know this token; the place in the ring is each one's own.
    Processes { workers: WorkerRange, token: Arc<[u8]>, welcome: Welcome, start: Duration, silence: Duration },
}

/// The controller's end of a lane.
#[derive(Debug)]
pub(crate) struct Controller {
    pub(super) kind: Kind,
    told: Told,
    pub(super) start: Duration,
    pub(super) workers: WorkerRange,
    /// Until all peers have come, or it is clear that they won't.
    pub(super) door: Option<Door>,
    pub(super) peers: Vec<Peer>,
    pub(super) conns: BTreeMap<Conn, usize>,
    pub(super) batch: Batch,
    /// When packets that wait for others go without them.
    pub(super) held_until: Option<Instant>,
    attention: Attention,
    pub(super) out: Outbox,
    /// The latest epoch that a worker can be in.
    pub(super) epoch: u64,
    pub(super) phase: Phase,
    pub(super) leave: Leave,
    /// The end of workers that did not leave, and of what they did, once the lane is closed.
    pub(super) stuck: Option<Vec<String>>,
    /// There is an earlier timeout than the one known.
    pub(super) has_new_timeout: bool,
}

/// Connections that are no peers yet.
#[derive(Debug)]
pub(super) enum Door {
    Nodes(Nodes),
    Processes(Processes),
}

/// What peers are told when they come.
#[derive(Clone, Debug)]
enum Told {
    Assignment(Assignment),
    Welcome(Welcome),
}

impl Controller {
    /// A lane that starts `now`.
    pub(crate) fn new(terms: Terms, now: Instant) -> Self {
        let (kind, workers, per_peer, start, heartbeat, silence, door, told) = match terms {
            Terms::Nodes(terms, told) => {
                let Assignment { workers, start, heartbeat, silence, .. } = told;
                let (per_node, door) = (terms.per_node, Door::Nodes(Nodes::new(terms)));
                (Kind::Node, workers, per_node, start, heartbeat, silence, door, Told::Assignment(told))
            }
            Terms::Processes { workers, token, welcome, start, silence } => {
                let door = Door::Processes(Processes::new(token));
                (Kind::Process, workers, 1, start, Duration::MAX, silence, door, Told::Welcome(welcome))
            }
        };
        let liveness = Liveness::new(heartbeat, silence, now);
        let peer = |(index, members): (usize, WorkerRange)| {
            let name = match &door {
                Door::Nodes(nodes) => nodes.name(index, None),
                Door::Processes(_) => members.first().to_string(),
            };
            Peer::new(members, name, liveness.clone())
        };
        let peers: Vec<Peer> = workers.chunks(per_peer).enumerate().map(peer).collect();
        Self {
            kind,
            told,
            start,
            workers,
            door: Some(door),
            batch: Batch::new(peers.len()),
            peers,
            held_until: None,
            conns: BTreeMap::new(),
            attention: Attention::new(silence, now),
            out: Outbox::default(),
            epoch: 0,
            phase: Phase::Starting(now),
            leave: Leave::No,
            stuck: None,
            has_new_timeout: false,
        }
    }

    /// Takes in what has happened.
    pub(crate) fn handle(&mut self, event: Event, now: Instant) {
        // Threads that do not listen bring these events, too.
        let is_heard = !matches!(
            event,
            Event::Signal(_) | Event::Close(_) | Event::Dropped | Event::Full(..) | Event::Accused(..)
        );
        if is_heard && self.attention.look(now) && !fault::is_planted(Fault::NoExcuse) {
            self.peers.iter_mut().for_each(|peer| peer.liveness.excuse(now));
            if let Some(Door::Nodes(nodes)) = &mut self.door {
                nodes.excuse(now);
            }
        }
        match event {
            Event::Opened(conn, origin) => self.open(conn, origin, now),
            Event::Closed(why) => self.stop_accepting(why, now),
            Event::Bytes(conn, bytes) => {
                if let Some(Door::Nodes(nodes)) = &mut self.door {
                    nodes.bytes(conn, &bytes, now, &mut self.out);
                }
            }
            Event::Message(conn, message) => match self.conns.get(&conn) {
                Some(peer) => self.hear(*peer, conn, message, now),
                None => self.admit(conn, message, now),
            },
            Event::Heard(conn) => {
                if let Some(index) = self.conns.get(&conn) {
                    self.peers[*index].liveness.heard(now);
                }
            }
            Event::Garbage(conn, error) => match self.conns.get(&conn) {
                Some(index) => self.close(*index, Cause::Known(garbage(&error)), now),
                None => self.lose(conn, error, now),
            },
            Event::Hung(conn, why) => match self.conns.get(&conn) {
                Some(index) => self.close(
                    *index,
                    why.map_or(Cause::Unknown, |why| Cause::Known(LossCause::ConnectionFailed(why))),
                    now,
                ),
                None => {
                    let why = why.map_or_else(|| "it left without a word".into(), |why| format!("it left: {why}"));
                    self.lose(conn, Error::protocol(why), now);
                }
            },
            Event::Full(conn, unread) => {
                let why = LossCause::Unread(unread);
                match self.conns.get(&conn) {
                    Some(index) => self.close(*index, Cause::Known(why), now),
                    None => self.lose(conn, Error::protocol(why.to_string()), now),
                }
            }
            Event::Started(index, child) => {
                self.peers[index].process = child.map_or(Process::Stranger, Process::Child);
                if self.phase == (Phase::Ending { kill: None }) {
                    self.kill(index);
                }
            }
            Event::Ended(index, status) => {
                self.peers[index].process = Process::Ended(status);
                // Nothing comes of a process that has ended, whichever process may hold its end of the connection.
                if self.kind == Kind::Process {
                    self.close(index, Cause::Unknown, now);
                }
                self.end_if_over(now);
            }
            Event::Accused(index, why) => self.close(index, Cause::Known(why), now),
            Event::Signal(signal) => self.signal(signal),
            Event::Close(limit) => self.begin_to_close(limit, now),
            Event::Dropped => self.abandon(now),
            Event::Broken(why) => self.break_off(&why, now),
            Event::Timer => self.look(now),
        }
    }

    /// Bytes that are to be written now, by the thread that has brought the event.
    pub(crate) fn next_write(&mut self) -> Option<Write> {
        self.out.writes.pop_front()
    }

    /// What is to be done next.
    pub(crate) fn next_action(&mut self) -> Option<Action> {
        self.out.actions.pop_front()
    }

    /// Whether the thread that does what is to be done has to be woken: there is something, or an earlier timeout.
    pub(crate) fn take_wake(&mut self) -> bool {
        let has_new_timeout = std::mem::take(&mut self.has_new_timeout) && !fault::is_planted(Fault::MissedWake);
        has_new_timeout || !self.out.actions.is_empty()
    }

    /// When [`Event::Timer`] is due.
    pub(crate) fn next_timeout(&self) -> Option<Instant> {
        if self.phase == Phase::Over {
            return None;
        }
        let door = self.door.as_ref().and_then(|door| match door {
            Door::Nodes(nodes) => nodes.next_timeout(),
            Door::Processes(processes) => processes.next_timeout(),
        });
        let peers = self.peers.iter().filter_map(Peer::next_timeout);
        let (batch, attention) = (self.batch.deadline(), self.attention.next_timeout());
        let others = [door, batch, self.held_until, self.phase_timeout(), attention];
        peers.chain(others.into_iter().flatten()).min()
    }

    /// Whether connections are to be accepted.
    pub(crate) fn accepts(&self) -> bool {
        match &self.door {
            Some(Door::Nodes(nodes)) => nodes.accepts(),
            door => door.is_some(),
        }
    }

    /// The workers of all peers.
    pub(crate) fn workers(&self) -> WorkerRange {
        self.workers
    }

    /// Bytes of the values of one command or reply.
    pub(crate) fn value_limit(&self) -> usize {
        match &self.told {
            Told::Assignment(assignment) => assignment.config.value_limit,
            Told::Welcome(welcome) => welcome.config.value_limit,
        }
    }

    /// The connection of a peer.
    pub(crate) fn conn(&self, peer: usize) -> Option<Conn> {
        self.peers.get(peer)?.conn()
    }

    /// The connection of the peer of a worker.
    pub(crate) fn conn_of(&self, worker: WorkerId) -> Option<Conn> {
        self.place(worker).and_then(|(peer, _)| self.conn(peer))
    }

    /// What a worker is doing.
    pub(crate) fn progress(&self, worker: WorkerId) -> Progress {
        self.place(worker).map(|(peer, at)| self.peers[peer].progress[at].clone()).unwrap_or_default()
    }

    /// The peer of a worker, and which of its workers it is.
    pub(super) fn place(&self, worker: WorkerId) -> Option<(usize, usize)> {
        let at = self.workers.position(worker)?;
        let per_peer = self.peers.first()?.progress.len();
        Some((at / per_peer, at % per_peer)).filter(|(peer, _)| *peer < self.peers.len())
    }

    fn open(&mut self, conn: Conn, origin: Origin, now: Instant) {
        match (&mut self.door, origin) {
            (Some(Door::Nodes(nodes)), Origin::Tcp { address, nonce }) => {
                nodes.open(conn, address, nonce, now, &mut self.out);
            }
            (Some(Door::Processes(processes)), Origin::Unix { pid }) => {
                let is_ours = |pid| self.peers.iter().any(|peer| peer.process == Process::Child(pid));
                processes.open(conn, pid, pid.is_some_and(is_ours), now, &mut self.out);
            }
            _ => self.out.act(Action::Close(conn)),
        }
    }

    fn stop_accepting(&mut self, why: io::Error, now: Instant) {
        match &mut self.door {
            Some(Door::Nodes(nodes)) => nodes.pause(why, now, &mut self.out),
            Some(Door::Processes(_)) => self.give_up(&Error::system("the lane can't accept connections", why), now),
            None => {}
        }
    }

    /// A message of a connection that is no peer.
    fn admit(&mut self, conn: Conn, message: Message, now: Instant) {
        match &mut self.door {
            Some(Door::Nodes(nodes)) => nodes.message(conn, message, now, &mut self.out),
            Some(Door::Processes(processes)) => {
                let verdict = processes.message(conn, message, &mut self.out);
                self.judge(conn, verdict, now);
            }
            None => {}
        }
    }

    /// A connection that is no peer is of no use any more.
    fn lose(&mut self, conn: Conn, why: Error, now: Instant) {
        match &mut self.door {
            Some(Door::Nodes(nodes)) => nodes.lose(conn, &why, now, &mut self.out),
            Some(Door::Processes(processes)) => {
                let verdict = processes.lose(conn, why, &mut self.out);
                self.judge(conn, verdict, now);
            }
            None => self.out.act(Action::Close(conn)),
        }
    }

    /// All nodes have come: tells each which one it is.
    fn assign(&mut self, joined: Vec<Joined>, now: Instant) {
        let (Told::Assignment(assignment), Some(Door::Nodes(nodes))) = (self.told.clone(), self.door.take()) else {
            return;
        };
        // They are to say what is wrong before this end gives up.
        let left = self.phase_timeout().map_or(Duration::MAX, |end| end.saturating_duration_since(now));
        let left = left - left / 10;
        for (index, Joined { conn, join, .. }) in joined.into_iter().enumerate() {
            let peer = &mut self.peers[index];
            peer.name = nodes.name(index, Some(&join.name));
            let (node, workers) = (index as u32 + 1, peer.workers);
            let assignment = Assignment { node, workers, start: left, ..assignment.clone() };
            self.seat(index, State::Joined(conn), conn, now);
            self.out.send(conn, &Message::Assign(assignment));
        }
        self.out.act(Action::StopAccepting);
        nodes.end(None, &mut self.out);
    }

    /// What becomes of a connection to the door of processes.
    fn judge(&mut self, conn: Conn, verdict: Option<Verdict>, now: Instant) {
        match verdict {
            None => {}
            Some(Verdict::Refused { pid, worker, error }) => self.send_away(pid, worker, &error, now),
            Some(Verdict::Worker { pid, hello }) => match self.seat_for(hello.worker) {
                Err(error) => {
                    self.out.refuse(conn, &error);
                    self.send_away(pid, None, &error, now);
                }
                Ok(index) => self.welcome(index, conn, pid, now),
            },
        }
    }

    /// A connection was refused. If it is one of a worker that is waited for, the lane does not come about.
    fn send_away(&mut self, pid: Option<u32>, worker: Option<WorkerId>, error: &Error, now: Instant) {
        let is_its = |peer: &&Peer| pid.is_some_and(|pid| peer.process == Process::Child(pid));
        match worker.or(self.peers.iter().find(is_its).map(|peer| peer.workers.first())) {
            Some(worker) => {
                let peer = LostPeer::Workers { workers: worker.into(), node: None };
                let lost = Error::lost(peer, LossCause::Refused(error.to_string()));
                self.give_up(&lost, now);
            }
            None => tracing::warn!(pid, %error, "a stranger was sent away"),
        }
    }

    /// The peer of a worker that has not come yet.
    fn seat_for(&self, worker: WorkerId) -> Result<usize> {
        let (index, _) = self.place(worker).ok_or_else(|| Error::refused(format!("this lane has no {worker}")))?;
        match self.peers[index].state {
            State::Expected => Ok(index),
            _ => Err(Error::refused(format!("{worker} is here already"))),
        }
    }

    fn welcome(&mut self, index: usize, conn: Conn, pid: Option<u32>, now: Instant) {
        let Told::Welcome(mut welcome) = self.told else { return };
        if let Some(place) = &mut welcome.ring {
            place.reader = index;
        }
        let order = if welcome.ring.is_some() { Order::WithRing } else { Order::Urgent };
        self.out.send_as(conn, &Message::Welcome(welcome), order);
        self.seat(index, State::Ready(conn), conn, now);
        if let (Process::Unknown, Some(pid)) = (self.peers[index].process, pid) {
            self.out.act(Action::Watch { peer: index, pid, conn });
        }
        self.start_if_ready();
    }

    /// The lane has come about once all workers of all peers have started.
    pub(super) fn start_if_ready(&mut self) {
        let is_ready = self.peers.iter().all(|peer| matches!(peer.state, State::Ready(_)));
        if is_ready && let Phase::Starting(_) = self.phase {
            self.out.act(Action::StopAccepting);
            self.end_admission(None);
            self.phase = Phase::Running;
            self.out.act(Action::Started(Ok(())));
        }
    }

    /// A connection is that of a peer from now on.
    fn seat(&mut self, index: usize, state: State, conn: Conn, now: Instant) {
        let peer = &mut self.peers[index];
        peer.state = state;
        peer.liveness.excuse(now);
        peer.liveness.said(now);
        self.conns.insert(conn, index);
        self.out.act(Action::Listen(conn, packet_limit(self.value_limit())));
    }

    /// What depends on time alone.
    fn look(&mut self, now: Instant) {
        self.linger(now);
        if self.held_until.take_if(|until| now >= *until).is_some() {
            self.out.act(Action::Flush);
        }
        match &mut self.door {
            Some(Door::Nodes(nodes)) => {
                if let Some(joined) = nodes.look(now, &mut self.out) {
                    self.assign(joined, now);
                }
            }
            Some(Door::Processes(_)) => {
                while let Some(Door::Processes(processes)) = &mut self.door
                    && let Some(Verdict::Refused { pid, worker, error }) = processes.expire(now, &mut self.out)
                {
                    self.send_away(pid, worker, &error, now);
                }
            }
            None => {}
        }
        for index in 0..self.peers.len() {
            let peer = &mut self.peers[index];
            let Some(conn) = peer.conn() else {
                self.report(index, now);
                continue;
            };
            if peer.liveness.must_say(now) {
                peer.liveness.said(now);
                if !fault::is_planted(Fault::SilentController) {
                    self.out.send(conn, &Message::Alive);
                }
            }
            if let Some(limit) = peer.liveness.is_silent(now) {
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
        let state = match &self.door {
            Some(Door::Nodes(nodes)) => nodes.missing(),
            Some(Door::Processes(_)) => {
                format!("{} did not connect", missing(|peer| matches!(peer.state, State::Expected)))
            }
            None => format!("{} did not start all workers", missing(|peer| !matches!(peer.state, State::Ready(_)))),
        };
        Error::Deadline { operation: "start".into(), after: self.start, state }
    }
}
