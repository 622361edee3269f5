//! The end of peers and of the lane.

use std::process::ExitStatus;
use std::sync::Arc;
use std::time::{Duration, Instant};

use disco_core::channel::Signal;
use disco_core::error::{LossCause, LostPeer, Node, ProcessEnd};
use disco_core::wire::Message;
use disco_core::{Error, Result, WorkerId, WorkerRange};

use super::event::{Action, Order};
use super::machine::Controller;
use super::peer::{Cause, Kind, Peer, PeerState};
use super::phase::{Leave, Phase};
use super::side::{NodeSide, Side};
use crate::fault::{self, Fault};

/// Time for nodes to report workers that did not stop, after they were told to end at once.
const NODE_SHUTDOWN_GRACE: Duration = Duration::from_secs(2);
/// Additional time for nodes that relay, for each level of nodes behind them: they wait for their children.
const LEVEL_SHUTDOWN_GRACE: Duration = Duration::from_millis(500);
/// Time for worker processes to end after they were aborted.
const PROCESS_ABORT_GRACE: Duration = Duration::from_millis(500);
/// Time for worker processes to end after their lane was dropped.
const DROPPED_GRACE: Duration = Duration::from_secs(5);
/// Time for the processes of nodes to end after their connections were closed, before they are killed. Longer than the
/// time that a node without a controller gives its workers.
const CHILD_EXIT_GRACE: Duration = Duration::from_secs(2);

impl Controller {
    /// The peers are threads in processes of another session: processes are neither watched nor killed.
    #[must_use]
    pub fn in_subset(mut self) -> Self {
        if let Side::Processes(side) = &mut self.side {
            side.watches = false;
        }
        self
    }

    /// The workers that did not leave; `Some` once the lane is closed.
    pub fn stuck(&self) -> Option<&[String]> {
        self.stuck.as_deref()
    }

    pub(super) fn signal(&mut self, signal: Signal) {
        match signal {
            Signal::Shutdown => self.signal_shutdown(),
            Signal::Taken { worker, .. } => {
                self.tell(&Message::Signal(signal), |peer| peer.workers.contains(worker));
            }
            Signal::Replace { workers, .. } => {
                self.tell(&Message::Signal(signal), |peer| peer.workers.contains(workers.first()));
            }
            signal => self.tell_all(&Message::Signal(signal)),
        }
    }

    /// Ends the peers of these workers, which were told to leave and have not: kills processes, and cuts nodes off.
    pub fn end(&mut self, workers: WorkerRange, now: Instant) {
        for index in 0..self.peers.len() {
            let peer = &self.peers[index];
            if peer.conn().is_none() || !workers.contains(peer.workers.first()) {
                continue;
            }
            tracing::info!(peer = peer.name, "a peer that was told to leave is ended");
            match self.side.kind() {
                Kind::Process => self.kill(index),
                Kind::Node => self.close(index, Cause::Unknown, now),
            }
        }
    }

    /// Closes the connection of a peer, and reports its end once the cause is known.
    pub(super) fn close(&mut self, index: usize, cause: Cause, now: Instant) {
        let why = cause.to_string();
        if let Some(conn) = self.peers[index].close(cause, now) {
            tracing::debug!(peer = self.peers[index].name, why, "the connection of a peer is closed");
            self.conns.remove(&conn);
            self.out.act(Action::Close(conn));
        }
        self.report(index, now);
    }

    /// Reports the end of a peer once the cause is known.
    pub(super) fn report(&mut self, index: usize, now: Instant) {
        if let Some(why) = self.peers[index].take_end(self.side.kind(), now) {
            self.report_end(index, why, now);
        }
        if self.peers[index].take_rest(self.side.kind()) {
            self.go_on_closing(now);
            self.end_if_over(now);
        }
    }

    fn report_end(&mut self, index: usize, why: LossCause, now: Instant) {
        let peer = &self.peers[index];
        let (workers, is_clean) = (peer.workers, peer.is_clean(self.side.kind()));
        let is_process = self.side.kind() == Kind::Process;
        if is_process {
            if !fault::is_planted(Fault::NotRetired) {
                self.out.act(Action::Retire(index));
            }
        } else if let LossCause::Silent(_) = why {
            // A silent node may be frozen. Any other node ends its workers first, and is killed only if that takes too
            // long.
            self.kill(index);
        }
        if let Phase::Starting(_) = self.phase {
            let error = self.lost(index, why);
            tracing::info!(%error, "a peer was lost during the start");
            self.give_up(&error, now);
        } else if self.leave == Leave::AtOnce || self.leave == Leave::InOrder && is_clean || self.are_dismissed(workers)
        {
            if is_process && self.leave == Leave::No {
                if !is_clean {
                    self.kill(index);
                }
                self.out.act(Action::Forget(workers.first()));
                self.out.act(Action::Discard(workers.first()));
            }
            if is_process && fault::is_planted(Fault::DoubleDeparture) {
                self.out.act(Action::Left(workers));
            }
            tracing::debug!(peer = self.peers[index].name, %workers, "a peer has left");
            self.peers[index].is_unanswered = matches!(why, LossCause::Silent(_));
            self.out.act(Action::Left(workers));
        } else {
            if is_process {
                self.kill(index);
                // Its descriptors are of no use to a worker that replaces it.
                self.out.act(Action::Forget(workers.first()));
            }
            let error = self.lost(index, why);
            tracing::info!(%error, "a peer is lost");
            self.out.act(Action::Lost(workers, error));
        }
    }

    /// Fails the start of the lane.
    pub(super) fn give_up(&mut self, error: &Error, now: Instant) {
        self.end_admission(Some(error));
        for conn in self.peers.iter().filter_map(Peer::conn) {
            self.out.send_as(conn, &Message::Bye(error.to_string()), Order::Last);
        }
        self.out.act(Action::Started(Err(error.clone())));
        self.finish(now);
    }

    /// Fails the start if the process of the node in a place has ended while nodes are awaited.
    pub(super) fn give_up_without(&mut self, place: usize, status: Option<ExitStatus>, now: Instant) {
        let (Phase::Starting(_), Side::Nodes(side)) = (self.phase, &self.side) else { return };
        let Some(nodes) = side.admission.as_ref().filter(|nodes| !nodes.has_started()) else { return };
        let number = side.number(place);
        let node = Node::new(number, nodes.terms.name(number, None));
        let workers = side.workers_of(self.workers, place, 1);
        let end = status.map_or(ProcessEnd::Unknown, ProcessEnd::from);
        let why = match nodes.refusals() {
            Some(refused) => LossCause::Refused(format!("its process ended: {end}; refused: {refused}")),
            None => LossCause::ProcessEnded { end, connected: false },
        };
        let error = Error::peer_lost(LostPeer::Node { node, behind: 0, workers }, why);
        tracing::info!(%error, "the process of a node ended before all nodes had joined");
        self.give_up(&error, now);
    }

    /// Ends admission: closes the listener and the connections that are not peers. Nodes among them are told `why`.
    pub(super) fn end_admission(&mut self, why: Option<&Error>) {
        self.out.act(Action::StopAccepting);
        match &mut self.side {
            Side::Nodes(side) => side.admission.take().into_iter().for_each(|nodes| nodes.end(why, &mut self.out)),
            Side::Processes(side) => {
                side.admission.take().into_iter().for_each(|processes| processes.end(&mut self.out));
            }
        }
    }

    /// The session closes the lane.
    pub(super) fn begin_to_close(&mut self, limit: Duration, now: Instant) {
        match self.phase {
            Phase::Starting(_) => self.give_up(&Error::state("the lane was closed while it started"), now),
            // The next session may listen at the same address.
            _ => self.end_admission(None),
        }
        let limit = now.checked_add(limit);
        self.phase = match self.phase {
            Phase::Running => Phase::Closing(limit),
            // Of two concurrent calls of `close`, the earlier limit counts.
            Phase::Closing(other) => Phase::Closing(limit.into_iter().chain(other).min()),
            later => later,
        };
        if let Phase::Ending { .. } | Phase::Over = self.phase {
            self.signal_shutdown();
            self.stuck = self.stuck.take().or_else(|| Some(self.stuck_workers()));
        }
        self.has_new_timeout = true;
        self.go_on_closing(now);
    }

    /// Ends a dropped lane: nodes stop their workers by themselves, worker processes get a grace period.
    pub(super) fn end_dropped(&mut self, now: Instant) {
        match (self.phase, self.side.kind()) {
            (Phase::Ending { .. } | Phase::Over, _) => {}
            (Phase::Starting(_), _) | (_, Kind::Node) => {
                self.signal_shutdown();
                self.finish(now);
            }
            (_, Kind::Process) => {
                self.signal_shutdown();
                self.phase = Phase::Dropped(now + DROPPED_GRACE);
                self.has_new_timeout = true;
            }
        }
    }

    /// Continues the close that [`Event::Close`](super::Event::Close) has begun.
    pub fn go_on_closing(&mut self, now: Instant) {
        let have_ended = self.peers.iter().all(Peer::has_ended);
        if let Phase::Closing(until) = self.phase
            && (have_ended || until.is_some_and(|until| now >= until))
        {
            self.signal_shutdown();
            let cause = "the session shuts down".into();
            let (message, grace) = match &self.side {
                Side::Nodes(side) => {
                    let levels = LEVEL_SHUTDOWN_GRACE * side.depth.saturating_sub(1);
                    (Message::Bye(cause), NODE_SHUTDOWN_GRACE + levels)
                }
                // Ends collectives of workers that only wait for a stuck peer.
                Side::Processes(_) => {
                    (Message::Signal(Signal::Abort { epoch: u64::MAX, cause: cause.into() }), PROCESS_ABORT_GRACE)
                }
            };
            self.tell_all(&message);
            self.phase = Phase::Grace(now + grace);
        }
        match self.phase {
            Phase::Grace(until) if have_ended || now >= until => {
                self.stuck = Some(self.stuck_workers());
                self.finish(now);
            }
            Phase::Dropped(until) if now >= until => self.finish(now),
            _ => {}
        }
    }

    /// When the phase times out.
    pub(super) fn phase_timeout(&self) -> Option<Instant> {
        match self.phase {
            Phase::Starting(since) => since.checked_add(self.start),
            Phase::Closing(until) | Phase::Ending { kill: until } => until,
            Phase::Grace(until) | Phase::Dropped(until) => Some(until),
            Phase::Running | Phase::Over => None,
        }
    }

    /// Tells all peers to leave at once.
    fn signal_shutdown(&mut self) {
        self.leave = Leave::AtOnce;
        self.tell_all(&Message::Signal(Signal::Shutdown));
    }

    fn tell_all(&mut self, message: &Message) {
        self.tell(message, |_| true);
    }

    /// Sends a message to some peers.
    fn tell(&mut self, message: &Message, is_told: impl Fn(&Peer) -> bool) {
        let packet: Arc<[u8]> = match message.encode() {
            Ok(packet) => packet.into(),
            Err(error) => return tracing::error!(%error, %message, "can't be sent"),
        };
        let conns = self.peers.iter().filter(|peer| is_told(peer)).filter_map(Peer::conn);
        conns.for_each(|conn| self.out.write(conn, packet.clone(), Order::Urgent));
    }

    /// Ends all peers: closes connections and kills processes. Processes of nodes get time to end by themselves.
    fn finish(&mut self, now: Instant) {
        self.leave = Leave::AtOnce;
        self.end_admission(None);
        self.phase =
            Phase::Ending { kill: Some(if self.side.kind() == Kind::Process { now } else { now + CHILD_EXIT_GRACE }) };
        self.kill_if_due(now);
        // The connection of a running process stays open until it has ended, so that its last messages are handled.
        let ends = |peer: &Peer| self.side.kind() == Kind::Process && peer.conn().is_some() && peer.is_running();
        let others: Vec<usize> = (0..self.peers.len()).filter(|index| !ends(&self.peers[*index])).collect();
        others.into_iter().for_each(|index| self.close(index, Cause::Unknown, now));
        self.end_if_over(now);
    }

    pub(super) fn kill(&mut self, index: usize) {
        let peer = &self.peers[index];
        if peer.is_running() && !peer.is_free() {
            self.out.act(Action::Kill(peer.place));
        }
    }

    /// Kills the processes of all peers, and of the nodes behind them.
    pub(super) fn kill_all(&mut self) {
        (0..self.peers.len()).for_each(|index| self.kill(index));
        for (place, behind) in self.side.behind() {
            if behind.process.is_running() {
                self.out.act(Action::Kill(place));
            }
        }
    }

    fn kill_if_due(&mut self, now: Instant) {
        if let Phase::Ending { kill: Some(at) } = self.phase
            && now >= at
        {
            self.phase = Phase::Ending { kill: None };
            self.kill_all();
        }
    }

    /// Whether the lane stays after the loss of all its peers, for nodes that stand by.
    pub(super) fn stays(&self) -> bool {
        let stays = matches!(&self.side, Side::Nodes(NodeSide { admission: Some(nodes), .. }) if nodes.stays());
        stays && self.phase == Phase::Running
    }

    /// Ends the lane once all peers have ended.
    pub(super) fn end_if_over(&mut self, now: Instant) {
        self.kill_if_due(now);
        let is_starting = matches!(self.phase, Phase::Starting(_));
        if self.phase == Phase::Over || is_starting || self.stays() || !self.peers.iter().all(Peer::has_ended) {
            return;
        }
        let has_children = self.side.kind() == Kind::Node
            && (self.peers.iter().any(Peer::is_running)
                || self.side.behind().any(|(_, behind)| behind.process.is_running()));
        if has_children && !fault::is_planted(Fault::ChildrenLeft) {
            if !matches!(self.phase, Phase::Ending { .. }) {
                self.phase = Phase::Ending { kill: Some(now + CHILD_EXIT_GRACE) };
            }
            return;
        }
        self.end_admission(None);
        self.phase = Phase::Over;
        self.out.act(Action::Over);
    }

    /// Loses all peers, since the reactor thread has failed. Earlier actions are dropped.
    pub(super) fn break_off(&mut self, why: &str, now: Instant) {
        self.out.actions.clear();
        if let Phase::Starting(_) = self.phase {
            self.out.act(Action::Started(Err(Error::state(why))));
        }
        self.end_admission(None);
        for index in 0..self.peers.len() {
            let lost = self.lost(index, LossCause::Other(why.to_owned()));
            let peer = &mut self.peers[index];
            if !matches!(peer.state, PeerState::Reported(_) | PeerState::Ended(_)) {
                let workers = peer.workers;
                let is_expected = self.leave == Leave::AtOnce;
                tracing::info!(%lost, "the reactor thread has failed");
                self.out.act(if is_expected { Action::Left(workers) } else { Action::Lost(workers, lost) });
            }
            self.out.actions.extend(peer.conn().map(Action::Close));
            peer.state = PeerState::Ended(peer.cause().cloned().unwrap_or(Cause::Unknown));
        }
        self.go_on_closing(now);
        if self.phase != Phase::Over {
            self.phase = Phase::Over;
            self.out.act(Action::Over);
        }
    }

    /// Whether the session has told these workers to leave, because it has others by now.
    pub(super) fn are_dismissed(&self, workers: WorkerRange) -> bool {
        self.members.as_ref().is_some_and(|members| members.have_none_of(workers))
    }

    /// The error of a lost peer.
    fn lost(&self, index: usize, why: LossCause) -> Error {
        let workers = self.peers[index].workers;
        let peer = match &self.side {
            Side::Processes(_) => LostPeer::Workers { workers, node: None },
            Side::Nodes(side) => self.lost_nodes(side, workers),
        };
        Error::peer_lost(peer, why)
    }

    /// The nodes of these workers, of which the first relays for the others.
    pub(super) fn lost_nodes(&self, side: &NodeSide, workers: WorkerRange) -> LostPeer {
        let behind = workers.len().div_ceil(side.per_node).saturating_sub(1) as u32;
        LostPeer::Node { node: self.node_of(side, workers.first()), behind, workers }
    }

    /// The node of a worker.
    pub(super) fn node_of(&self, side: &NodeSide, worker: WorkerId) -> Node {
        let place = self.workers.position(worker).unwrap_or(0) / side.per_node;
        let number = side.number(place);
        let peer = self.peer_at(place).map(|index| &self.peers[index].name);
        let behind = || side.behind.get(&place).map(|behind| &behind.name);
        let name = peer.or_else(behind).cloned().unwrap_or_else(|| format!("node {number}"));
        Node::new(number, name)
    }

    /// The workers that did not leave, with their progress.
    fn stuck_workers(&self) -> Vec<String> {
        self.peers.iter().flat_map(|peer| self.stuck_of(peer)).collect()
    }

    fn stuck_of(&self, peer: &Peer) -> Vec<String> {
        let Peer { name, workers, progress, .. } = peer;
        let why = match (&self.side, peer.cause()) {
            (Side::Nodes(_), Some(Cause::Left(stuck))) if !stuck.is_empty() => return vec![stuck.clone()],
            _ if peer.has_ended() && !peer.is_unanswered => return Vec::new(),
            (Side::Nodes(_), _) => format!("{name} does not answer"),
            (Side::Processes(side), _) => if side.watches { "killed" } else { "detached" }.to_owned(),
        };
        let name =
            |place: WorkerId| self.members.as_ref().map_or_else(|| place.to_string(), |members| members.name(place));
        workers.iter().zip(progress).map(|(place, progress)| format!("{} ({progress}; {why})", name(place))).collect()
    }

    /// Checks that the lane takes a frame.
    ///
    /// # Errors
    /// The lane, called `lane` in messages, is closed or full.
    pub fn check(&self, lane: impl Fn() -> String) -> Result<()> {
        self.check_open(&lane)?;
        match self.room_for_small() {
            0 => Err(Error::state(format!("{}: the lane is full", lane()))),
            _ => Ok(()),
        }
    }

    /// Checks that the lane, called `lane` in messages, is open.
    ///
    /// # Errors
    /// [`Error::Closed`].
    pub fn check_open(&self, lane: impl Fn() -> String) -> Result<()> {
        match self.leave {
            Leave::AtOnce => Err(Error::Closed(lane())),
            _ => Ok(()),
        }
    }
}
