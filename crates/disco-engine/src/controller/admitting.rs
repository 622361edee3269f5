//! Connections that are not peers yet, or never become peers: the engine's part of their admission.

use std::io;
use std::time::Instant;

use disco_core::error::{LossCause, LostPeer};
use disco_core::wire::Message;
use disco_core::{Error, Result, WorkerId};

use super::admission::Verdict;
use super::event::{Action, Conn, Order, Origin};
use super::machine::Controller;
use super::peer::{Cause, Peer, PeerState, Process};
use super::side::{NodeSide, ProcessSide, Side};
use crate::limits::packet_limit;

impl Controller {
    pub(super) fn open(&mut self, conn: Conn, origin: Origin, now: Instant) {
        match (&mut self.side, origin) {
            (Side::Nodes(NodeSide { admission: Some(nodes), .. }), Origin::Tcp { address, nonce }) => {
                nodes.open(conn, address, nonce, now, &mut self.out);
            }
            (Side::Processes(ProcessSide { admission: Some(processes), .. }), Origin::Unix { pid }) => {
                let is_ours = |pid| self.peers.iter().any(|peer| peer.process == Process::Child(pid));
                processes.open(conn, pid, pid.is_some_and(is_ours), now, &mut self.out);
            }
            _ => self.out.act(Action::Close(conn)),
        }
    }

    pub(super) fn stop_accepting(&mut self, why: io::Error, now: Instant) {
        match &mut self.side {
            Side::Nodes(NodeSide { admission: Some(nodes), .. }) => nodes.pause(why, now, &mut self.out),
            Side::Processes(ProcessSide { admission: Some(_), .. }) => {
                self.give_up(&Error::system("the lane can't accept connections", why), now);
            }
            _ => {}
        }
    }

    /// Handles a message of a connection that is not a peer.
    pub(super) fn admit(&mut self, conn: Conn, message: Message, now: Instant) {
        match &mut self.side {
            Side::Nodes(NodeSide { admission: Some(nodes), .. }) => nodes.message(conn, message, now, &mut self.out),
            Side::Processes(ProcessSide { admission: Some(processes), .. }) => {
                let verdict = processes.message(conn, message, &mut self.out);
                self.judge(conn, verdict, now);
            }
            _ => {}
        }
    }

    /// Closes a connection that does not carry bytes to the other end.
    pub(super) fn cut(&mut self, conn: Conn, why: LossCause, now: Instant) {
        match self.conns.get(&conn) {
            Some(index) => self.close(*index, Cause::Known(why), now),
            None => self.lose(conn, Error::protocol(why.to_string()), now),
        }
    }

    /// Drops a connection that is not a peer and has failed.
    pub(super) fn lose(&mut self, conn: Conn, why: Error, now: Instant) {
        match &mut self.side {
            Side::Nodes(NodeSide { admission: Some(nodes), .. }) => nodes.lose(conn, &why, now, &mut self.out),
            Side::Processes(ProcessSide { admission: Some(processes), .. }) => {
                let verdict = processes.lose(conn, why, &mut self.out);
                self.judge(conn, verdict, now);
            }
            _ => self.out.act(Action::Close(conn)),
        }
    }

    /// Carries out the verdict on the connection of a process.
    fn judge(&mut self, conn: Conn, verdict: Option<Verdict>, now: Instant) {
        match verdict {
            None => {}
            Some(Verdict::Refused { pid, worker, error }) => self.reject(pid, worker, &error, now),
            Some(Verdict::Worker { pid, hello }) => match self.expected_peer(hello.worker) {
                Err(error) => {
                    self.out.refuse(conn, &error);
                    self.reject(pid, None, &error, now);
                }
                Ok(index) => {
                    self.peers[index].ids = pid.map(|pid| (pid, hello.thread));
                    self.welcome(index, conn, pid, now);
                }
            },
        }
    }

    /// Handles a refused connection. If it is that of an expected worker, the start of the lane fails.
    pub(super) fn reject(&mut self, pid: Option<u32>, worker: Option<WorkerId>, error: &Error, now: Instant) {
        let is_its = |peer: &&Peer| pid.is_some_and(|pid| peer.process == Process::Child(pid));
        match worker.or(self.peers.iter().find(is_its).map(|peer| peer.workers.first())) {
            Some(worker) => {
                let peer = LostPeer::Workers { workers: worker.into(), node: None };
                let lost = Error::peer_lost(peer, LossCause::Refused(error.to_string()));
                self.give_up(&lost, now);
            }
            None => tracing::warn!(pid, %error, "a process that is no worker of this lane was refused"),
        }
    }

    /// The peer of a worker that has not joined yet.
    fn expected_peer(&self, worker: WorkerId) -> Result<usize> {
        let (index, _) = self.place(worker).ok_or_else(|| Error::refused(format!("this lane has no {worker}")))?;
        match self.peers[index].state {
            PeerState::Expected => Ok(index),
            _ => Err(Error::refused(format!("{worker} has joined already"))),
        }
    }

    fn welcome(&mut self, index: usize, conn: Conn, pid: Option<u32>, now: Instant) {
        let Side::Processes(ProcessSide { mut welcome, watches, .. }) = self.side else { return };
        if let Some(place) = &mut welcome.ring {
            place.reader = index;
        }
        let order = if welcome.ring.is_some() { Order::WithRing } else { Order::Urgent };
        self.out.send_as(conn, &Message::Welcome(welcome), order);
        self.attach(index, PeerState::Ready(conn), conn, now);
        if let (true, Process::Unknown, Some(pid)) = (watches, self.peers[index].process, pid) {
            self.out.act(Action::Watch { peer: index, pid, conn });
        }
        self.start_if_ready();
    }

    /// Makes a connection that of a peer.
    pub(super) fn attach(&mut self, index: usize, state: PeerState, conn: Conn, now: Instant) {
        let peer = &mut self.peers[index];
        peer.state = state;
        peer.liveness.excuse(now);
        peer.liveness.sent(now);
        self.conns.insert(conn, index);
        self.out.act(Action::Listen(conn, packet_limit(self.value_limit())));
    }
}
