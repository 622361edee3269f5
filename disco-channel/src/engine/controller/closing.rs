//! How peers and the lane end.

use std::sync::Arc;
use std::time::{Duration, Instant};

use disco_core::channel::Signal;
use disco_core::error::{LossCause, LostPeer, Node};
use disco_core::wire::Message;
use disco_core::{Error, Result};

use super::event::{Action, Order};
use super::machine::{Controller, Door};
use super::peer::{Kind, Peer};

/// How long nodes may take to say which of their workers did not leave, and aborted processes to leave.
const FAREWELL: Duration = Duration::from_secs(2);
const GRACE: Duration = Duration::from_millis(500);
/// How long workers of a lane that was dropped have to leave.
const ABANDONED: Duration = Duration::from_secs(5);
/// Limit for the processes of nodes to end once their nodes were let go of, after which they are killed: longer than a node whose
/// controller is gone gives its workers.
const LEAVE: Duration = Duration::from_secs(2);

/// How far the lane is with its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Closing {
    Open,
    /// Peers have until then to leave by themselves.
    Waiting(Option<Instant>),
    /// They were told to leave at once, and have until then.
    Farewell(Instant),
    /// The lane was dropped: they were told so, too.
    Abandoned(Instant),
    Done,
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
    pub(super) fn close(&mut self, index: usize, why: Option<LossCause>, now: Instant) {
        let peer = &mut self.peers[index];
        peer.closed.get_or_insert((now, why));
        if let Some(conn) = peer.conn.take() {
            self.conns.remove(&conn);
            self.out.act(Action::Close(conn));
        }
        self.report(index, now);
    }

    /// Reports the end of a peer once that is clear.
    pub(super) fn report(&mut self, index: usize, now: Instant) {
        let (kind, peer) = (self.kind, &mut self.peers[index]);
        if !peer.is_over
            && let Some(why) = peer.why(kind, now)
        {
            peer.is_over = true;
            self.report_end(index, why, now);
        }
        let peer = &mut self.peers[index];
        let has_ended = kind == Kind::Node || !peer.is_running() || peer.is_free();
        if peer.is_over && has_ended && !std::mem::replace(&mut peer.is_gone, true) {
            self.go_on_closing(now);
            self.end_if_over(now);
        }
    }

    fn report_end(&mut self, index: usize, why: LossCause, now: Instant) {
        let peer = &self.peers[index];
        let (workers, is_silent) = (peer.workers, peer.is_silent);
        let is_fine = match self.kind {
            Kind::Node => peer.left.is_some(),
            Kind::Process => peer.is_clean(),
        };
        let is_process = self.kind == Kind::Process;
        // Any other node ends its workers first, and is killed only if that takes too long.
        if is_silent && !is_process {
            self.kill(index);
        }
        if is_process {
            self.out.act(Action::Retire(index));
        }
        if self.starting.is_some() {
            self.give_up(&self.lost(index, why), now);
        } else if self.expected || self.leaving && is_fine {
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
        self.starting = None;
        self.expected = true;
        self.out.act(Action::StopAccepting);
        self.end_admission(Some(error));
        for index in 0..self.peers.len() {
            if let Some(conn) = self.peers[index].conn {
                self.out.send_as(conn, &Message::Bye(error.to_string()), Order::Last);
            }
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
        self.closing = match self.closing {
            Closing::Open => Closing::Waiting(limit),
            // The lane is closed twice at once: the shorter limit counts.
            Closing::Waiting(other) => Closing::Waiting(limit.into_iter().chain(other).min()),
            later => later,
        };
        self.has_new_timeout = true;
        self.go_on_closing(now);
    }

    /// Nobody has the lane any more: nodes stop their workers by themselves, processes have some time to leave.
    pub(super) fn abandon(&mut self, now: Instant) {
        if self.is_over || self.closing == Closing::Done {
            return;
        }
        self.let_go();
        match self.kind {
            Kind::Process if self.starting.is_none() => {
                self.closing = Closing::Abandoned(now + ABANDONED);
                self.has_new_timeout = true;
            }
            _ => {
                self.starting = None;
                self.out.act(Action::StopAccepting);
                self.finish(now);
            }
        }
    }

    /// Goes on with what [`Event::Close`](super::Event::Close) has begun.
    pub(crate) fn go_on_closing(&mut self, now: Instant) {
        let all_gone = self.peers.iter().all(|peer| peer.is_gone);
        if let Closing::Waiting(until) = self.closing
            && (all_gone || until.is_some_and(|until| now >= until))
        {
            self.let_go();
            let (cause, grace) = ("the session shuts down", if self.kind == Kind::Node { FAREWELL } else { GRACE });
            self.tell_all(&match self.kind {
                Kind::Node => Message::Bye(cause.into()),
                // Whoever waits on a peer that is stuck is not stuck itself.
                Kind::Process => Message::Abort { epoch: u64::MAX, cause: cause.into() },
            });
            self.closing = Closing::Farewell(now + grace);
        }
        match self.closing {
            Closing::Farewell(until) if all_gone || now >= until => {
                self.closing = Closing::Done;
                self.stuck = Some((0..self.peers.len()).flat_map(|index| self.stuck_of(index)).collect());
                self.finish(now);
            }
            Closing::Abandoned(until) if now >= until => {
                self.closing = Closing::Done;
                self.finish(now);
            }
            _ => {}
        }
    }

    pub(super) fn closing_timeout(&self) -> Option<Instant> {
        let leave = self.childless.and_then(|since| since.checked_add(LEAVE));
        match self.closing {
            Closing::Waiting(until) => until,
            Closing::Farewell(until) | Closing::Abandoned(until) => Some(until),
            Closing::Open | Closing::Done => leave.filter(|_| !self.kills),
        }
    }

    /// Tells all peers to leave, now.
    fn let_go(&mut self) {
        self.closed = true;
        self.expected = true;
        self.tell_all(&Message::Shutdown);
    }

    fn tell_all(&mut self, message: &Message) {
        let packet: Arc<[u8]> = match message.encode() {
            Ok(packet) => packet.into(),
            Err(error) => return tracing::error!(%error, %message, "can't be sent"),
        };
        let conns = self.peers.iter().filter_map(|peer| peer.conn);
        conns.for_each(|conn| self.out.write(conn, packet.clone(), Order::Urgent));
    }

    /// Ends what is left: closes the connections to nodes, kills processes.
    fn finish(&mut self, now: Instant) {
        self.expected = true;
        self.end_admission(None);
        if self.kind == Kind::Process {
            self.kills = true;
            (0..self.peers.len()).for_each(|index| self.kill(index));
        }
        let starts = self.peers.iter().any(|peer| !peer.has_come);
        if self.kind == Kind::Node || starts {
            (0..self.peers.len()).for_each(|index| self.close(index, None, now));
        }
        self.end_if_over(now);
    }

    pub(super) fn kill(&mut self, index: usize) {
        let peer = &self.peers[index];
        if peer.is_running() && !peer.is_free() {
            self.out.act(Action::Kill(index));
        }
    }

    /// Ends the lane once nothing is left of any peer.
    pub(super) fn end_if_over(&mut self, now: Instant) {
        if self.is_over || self.door.is_some() || !self.peers.iter().all(|peer| peer.is_gone) {
            return;
        }
        if self.peers.iter().any(Peer::is_running) && self.kind == Kind::Node {
            let since = *self.childless.get_or_insert(now);
            if now.saturating_duration_since(since) >= LEAVE && !self.kills {
                self.kills = true;
                (0..self.peers.len()).for_each(|index| self.kill(index));
            }
            return;
        }
        self.is_over = true;
        self.out.act(Action::Over);
    }

    /// No action is carried out any more but those that follow from this: all peers are lost, and stop.
    pub(super) fn break_off(&mut self, why: &str, now: Instant) {
        self.out.actions.clear();
        if self.starting.take().is_some() {
            self.out.act(Action::Started(Err(Error::state(why))));
        }
        self.end_admission(None);
        for index in 0..self.peers.len() {
            let lost = self.lost(index, LossCause::Other(why.to_owned()));
            let peer = &mut self.peers[index];
            if !peer.is_over {
                let workers = peer.workers;
                self.out.act(if self.expected { Action::Left(workers) } else { Action::Lost(workers, lost) });
            }
            self.out.actions.extend(peer.conn.take().map(Action::Close));
            (peer.is_over, peer.is_gone) = (true, true);
        }
        self.is_over = true;
        self.go_on_closing(now);
        self.out.act(Action::Over);
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
        Node { number: index as u32 + 1, name: self.peers[index].name.clone() }
    }

    /// Workers of a peer that did not leave, and what they are doing.
    fn stuck_of(&self, index: usize) -> Vec<String> {
        let Peer { name, workers, left, is_gone, progress, .. } = &self.peers[index];
        let why = match (self.kind, left) {
            (Kind::Node, Some(stuck)) if stuck.is_empty() => return Vec::new(),
            (Kind::Node, Some(stuck)) => return vec![stuck.clone()],
            _ if *is_gone => return Vec::new(),
            (Kind::Node, None) => format!("{name} does not answer"),
            (Kind::Process, _) => "killed".to_owned(),
        };
        workers.iter().zip(progress).map(|(worker, progress)| format!("{worker} ({progress}; {why})")).collect()
    }

    /// Whether a frame may go.
    ///
    /// # Errors
    /// `lane` is closed or full.
    pub(crate) fn check(&self, lane: impl FnOnce() -> String) -> Result<()> {
        match self.closed {
            true => Err(Error::Closed(lane())),
            false if self.room() == 0 => Err(Error::state(format!("{}: is full", lane()))),
            false => Ok(()),
        }
    }
}
