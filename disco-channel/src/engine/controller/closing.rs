//! How peers and the lane end.

use std::sync::Arc;
use std::time::{Duration, Instant};

use disco_core::channel::Signal;
use disco_core::error::{LossCause, LostPeer, Node};
use disco_core::wire::Message;
use disco_core::{Error, Result};

use super::event::{Action, Order};
use super::machine::{Controller, Door};
use super::peer::{Cause, Kind, Peer, State};
use crate::engine::fault::{self, Fault};

/// How long nodes may take to say which of their workers did not leave, and aborted processes to leave.
const FAREWELL: Duration = Duration::from_secs(2);
const GRACE: Duration = Duration::from_millis(500);
/// How long workers of a lane that was dropped have to leave.
const ABANDONED: Duration = Duration::from_secs(5);
/// Limit for the processes of nodes to end once their nodes were let go of, after which they are killed: longer than a node whose
/// controller is gone gives its workers.
const LEAVE: Duration = Duration::from_secs(2);

/// How far the lane is between its start and its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Phase {
    /// Since this time peers come and start their workers.
    Starting(Instant),
    Running,
    /// The session closes the lane: peers have until then to leave by themselves.
    Closing(Option<Instant>),
    /// Peers were told to leave at once, and have until then.
    Farewell(Instant),
    /// The lane was dropped: processes have until then to leave.
    Abandoned(Instant),
    /// No connection is open. Processes that are left are killed at this time; none: they were killed, and each that is found still is.
    Ending {
        kill: Option<Instant>,
    },
    /// Nothing is left of any peer.
    Over,
}

/// How peers were told to leave.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Leave {
    /// They were not: each that ends is lost.
    No,
    /// Behind all commands: each that ends otherwise than by leaving is lost.
    InOrder,
    /// Now: the lane takes no more frames, and no peer that ends is lost.
    AtOnce,
}

impl Controller {
    /// Which workers did not leave, once the lane is closed.
    pub(crate) fn stuck(&self) -> Option<&[String]> {
        self.stuck.as_deref()
    }

    pub(super) fn signal(&mut self, signal: Signal) {
        match signal {
            Signal::Abort { epoch, cause } => self.tell_all(&Message::Abort { epoch, cause }),
            Signal::Shutdown => self.let_go(),
            other => tracing::error!(?other, "can't be passed on"),
        }
    }

    /// Closes the connection of a peer, which ends the peer if nothing else does.
    pub(super) fn close(&mut self, index: usize, cause: Cause, now: Instant) {
        if let Some(conn) = self.peers[index].close(cause, now) {
            self.conns.remove(&conn);
            self.out.act(Action::Close(conn));
        }
        self.report(index, now);
    }

    /// Reports the end of a peer once that is clear.
    pub(super) fn report(&mut self, index: usize, now: Instant) {
        if let Some(why) = self.peers[index].take_end(self.kind, now) {
            self.report_end(index, why, now);
        }
        if self.peers[index].take_rest(self.kind) {
            self.go_on_closing(now);
            self.end_if_over(now);
        }
    }

    fn report_end(&mut self, index: usize, why: LossCause, now: Instant) {
        let peer = &self.peers[index];
        let (workers, is_clean) = (peer.workers, peer.is_clean(self.kind));
        let is_process = self.kind == Kind::Process;
        if is_process {
            if !fault::is_planted(Fault::NotRetired) {
                self.out.act(Action::Retire(index));
            }
        } else if let LossCause::Silent(_) = why {
            // Any other node ends its workers first, and is killed only if that takes too long.
            self.kill(index);
        }
        if let Phase::Starting(_) = self.phase {
            self.give_up(&self.lost(index, why), now);
        } else if self.leave == Leave::AtOnce || self.leave == Leave::InOrder && is_clean {
            if is_process && fault::is_planted(Fault::DoubleDeparture) {
                self.out.act(Action::Left(workers));
            }
            self.out.act(Action::Left(workers));
        } else {
            if is_process {
                self.kill(index);
                // No data plane can be made with it any more.
                self.out.act(Action::Forget(workers.first()));
            }
            self.out.act(Action::Lost(workers, self.lost(index, why)));
        }
    }

    /// The lane does not come about.
    pub(super) fn give_up(&mut self, error: &Error, now: Instant) {
        self.end_admission(Some(error));
        for conn in self.peers.iter().filter_map(Peer::conn) {
            self.out.send_as(conn, &Message::Bye(error.to_string()), Order::Last);
        }
        self.out.act(Action::Started(Err(error.clone())));
        self.finish(now);
    }

    /// Connections that are no peers are not needed any more, and why if they are told.
    pub(super) fn end_admission(&mut self, why: Option<&Error>) {
        match self.door.take() {
            Some(Door::Nodes(nodes)) => nodes.end(why, &mut self.out),
            Some(Door::Processes(processes)) => processes.end(&mut self.out),
            None => {}
        }
    }

    /// The session closes the lane.
    pub(super) fn begin_to_close(&mut self, limit: Duration, now: Instant) {
        let limit = now.checked_add(limit);
        self.phase = match self.phase {
            Phase::Starting(_) | Phase::Running => Phase::Closing(limit),
            // The lane is closed twice at once: the shorter limit counts.
            Phase::Closing(other) => Phase::Closing(limit.into_iter().chain(other).min()),
            later => later,
        };
        if let Phase::Ending { .. } | Phase::Over = self.phase {
            self.let_go();
            self.stuck = self.stuck.take().or_else(|| Some(self.stuck_workers()));
        }
        self.has_new_timeout = true;
        self.go_on_closing(now);
    }

    /// Nobody has the lane any more: nodes stop their workers by themselves, processes have some time to leave.
    pub(super) fn abandon(&mut self, now: Instant) {
        match (self.phase, self.kind) {
            (Phase::Ending { .. } | Phase::Over, _) => {}
            (Phase::Starting(_), _) | (_, Kind::Node) => {
                self.let_go();
                self.finish(now);
            }
            (_, Kind::Process) => {
                self.let_go();
                self.phase = Phase::Abandoned(now + ABANDONED);
                self.has_new_timeout = true;
            }
        }
    }

    /// Goes on with what [`Event::Close`](super::Event::Close) has begun.
    pub(crate) fn go_on_closing(&mut self, now: Instant) {
        let all_gone = self.peers.iter().all(Peer::is_gone);
        if let Phase::Closing(until) = self.phase
            && (all_gone || until.is_some_and(|until| now >= until))
        {
            self.let_go();
            let (cause, grace) = ("the session shuts down", if self.kind == Kind::Node { FAREWELL } else { GRACE });
            self.tell_all(&match self.kind {
                Kind::Node => Message::Bye(cause.into()),
                // Whoever waits on a peer that is stuck is not stuck itself.
                Kind::Process => Message::Abort { epoch: u64::MAX, cause: cause.into() },
            });
            self.phase = Phase::Farewell(now + grace);
        }
        match self.phase {
            Phase::Farewell(until) if all_gone || now >= until => {
                self.stuck = Some(self.stuck_workers());
                self.finish(now);
            }
            Phase::Abandoned(until) if now >= until => self.finish(now),
            _ => {}
        }
    }

    /// When the phase ends by itself.
    pub(super) fn phase_timeout(&self) -> Option<Instant> {
        match self.phase {
            Phase::Starting(since) => since.checked_add(self.start),
            Phase::Closing(until) | Phase::Ending { kill: until } => until,
            Phase::Farewell(until) | Phase::Abandoned(until) => Some(until),
            Phase::Running | Phase::Over => None,
        }
    }

    /// Tells all peers to leave, now.
    fn let_go(&mut self) {
        self.leave = Leave::AtOnce;
        self.tell_all(&Message::Shutdown);
    }

    fn tell_all(&mut self, message: &Message) {
        let packet: Arc<[u8]> = match message.encode() {
            Ok(packet) => packet.into(),
            Err(error) => return tracing::error!(%error, %message, "can't be sent"),
        };
        let conns = self.peers.iter().filter_map(Peer::conn);
        conns.for_each(|conn| self.out.write(conn, packet.clone(), Order::Urgent));
    }

    /// Ends what is left: closes connections, kills processes; those of nodes end by themselves first.
    fn finish(&mut self, now: Instant) {
        self.leave = Leave::AtOnce;
        self.out.act(Action::StopAccepting);
        self.end_admission(None);
        self.phase = Phase::Ending { kill: Some(if self.kind == Kind::Process { now } else { now + LEAVE }) };
        self.kill_if_due(now);
        // What a process that ends has sent before is heard first: its connection is closed when it has ended.
        let ends = |peer: &Peer| self.kind == Kind::Process && peer.conn().is_some() && peer.is_running();
        let others: Vec<usize> = (0..self.peers.len()).filter(|index| !ends(&self.peers[*index])).collect();
        others.into_iter().for_each(|index| self.close(index, Cause::Unknown, now));
        self.end_if_over(now);
    }

    pub(super) fn kill(&mut self, index: usize) {
        let peer = &self.peers[index];
        if peer.is_running() && !peer.is_free() {
            self.out.act(Action::Kill(index));
        }
    }

    fn kill_if_due(&mut self, now: Instant) {
        if let Phase::Ending { kill: Some(at) } = self.phase
            && now >= at
        {
            self.phase = Phase::Ending { kill: None };
            (0..self.peers.len()).for_each(|index| self.kill(index));
        }
    }

    /// Ends the lane once nothing is left of any peer.
    pub(super) fn end_if_over(&mut self, now: Instant) {
        self.kill_if_due(now);
        if self.phase == Phase::Over || self.door.is_some() || !self.peers.iter().all(Peer::is_gone) {
            return;
        }
        let has_children = self.kind == Kind::Node && self.peers.iter().any(Peer::is_running);
        if has_children && !fault::is_planted(Fault::ChildrenLeft) {
            if !matches!(self.phase, Phase::Ending { .. }) {
                self.phase = Phase::Ending { kill: Some(now + LEAVE) };
            }
            return;
        }
        self.phase = Phase::Over;
        self.out.act(Action::Over);
    }

    /// No action is carried out any more but those that follow from this: all peers are lost, and stop.
    pub(super) fn break_off(&mut self, why: &str, now: Instant) {
        self.out.actions.clear();
        if let Phase::Starting(_) = self.phase {
            self.out.act(Action::Started(Err(Error::state(why))));
        }
        self.end_admission(None);
        for index in 0..self.peers.len() {
            let lost = self.lost(index, LossCause::Other(why.to_owned()));
            let peer = &mut self.peers[index];
            if !matches!(peer.state, State::Reported(_) | State::Gone(_)) {
                let workers = peer.workers;
                let is_expected = self.leave == Leave::AtOnce;
                self.out.act(if is_expected { Action::Left(workers) } else { Action::Lost(workers, lost) });
            }
            self.out.actions.extend(peer.conn().map(Action::Close));
            peer.state = State::Gone(peer.cause().cloned().unwrap_or(Cause::Unknown));
        }
        self.go_on_closing(now);
        if self.phase != Phase::Over {
            self.phase = Phase::Over;
            self.out.act(Action::Over);
        }
    }

    /// The error of a peer that is lost.
    fn lost(&self, index: usize, why: LossCause) -> Error {
        let workers = self.peers[index].workers;
        let peer = match self.kind {
            Kind::Process => LostPeer::Workers { workers, node: None },
            Kind::Node => LostPeer::Node { node: self.node(index), workers },
        };
        Error::lost(peer, why)
    }

    /// The node that a peer is.
    pub(super) fn node(&self, index: usize) -> Node {
        Node::new(index as u32 + 1, self.peers[index].name.clone())
    }

    /// Workers that did not leave, and what they are doing.
    fn stuck_workers(&self) -> Vec<String> {
        self.peers.iter().flat_map(|peer| self.stuck_of(peer)).collect()
    }

    fn stuck_of(&self, peer: &Peer) -> Vec<String> {
        let Peer { name, workers, progress, .. } = peer;
        let why = match (self.kind, peer.cause()) {
            (Kind::Node, Some(Cause::Left(stuck))) if !stuck.is_empty() => return vec![stuck.clone()],
            _ if peer.is_gone() => return Vec::new(),
            (Kind::Node, _) => format!("{name} does not answer"),
            (Kind::Process, _) => "killed".to_owned(),
        };
        workers.iter().zip(progress).map(|(worker, progress)| format!("{worker} ({progress}; {why})")).collect()
    }

    /// Whether a frame may go.
    ///
    /// # Errors
    /// `lane` is closed or full.
    pub(crate) fn check(&self, lane: impl FnOnce() -> String) -> Result<()> {
        match self.leave {
            Leave::AtOnce => Err(Error::Closed(lane())),
            _ if self.room_for_small() == 0 => Err(Error::state(format!("{}: is full", lane()))),
            _ => Ok(()),
        }
    }
}
