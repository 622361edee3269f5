//! Handles messages of peers.

use std::time::Instant;

use disco_core::channel::{Notice, Signal};
use disco_core::error::{LossCause, LostPeer};
use disco_core::link::SharedFd;
use disco_core::wire::{self, Message, Packet};
use disco_core::{Error, Result, Value, WorkerId, WorkerRange};

use super::event::{Action, Conn};
use super::machine::Controller;
use super::peer::{Cause, Kind, PeerState, garbage};
use super::phase::{Leave, Phase};
use super::side::Side;
use crate::fault::{self, Fault};

impl Controller {
    /// Handles a message of a peer. A message that breaks the protocol closes the connection.
    pub(super) fn receive(&mut self, index: usize, conn: Conn, message: Message, now: Instant) {
        self.peers[index].liveness.received(now);
        match self.receive_from_peer(index, conn, message, now) {
            Ok(None) => {}
            Ok(Some(cause)) => self.close(index, cause, now),
            Err(error) => self.close(index, Cause::Known(garbage(&error)), now),
        }
    }

    /// Returns why the peer ends if this message is its last one.
    fn receive_from_peer(&mut self, index: usize, conn: Conn, message: Message, now: Instant) -> Result<Option<Cause>> {
        let (kind, peer) = (self.side.kind(), &mut self.peers[index]);
        let worker = peer.workers.first();
        match message {
            Message::Credit { frames, bytes } => {
                peer.acknowledge(frames, bytes)?;
                if self.room_for_small() > 0 {
                    self.out.act(Action::Room);
                }
            }
            Message::StoreRequest { epoch, .. } if epoch > self.epoch => {
                return Err(Error::protocol(format!("a request in epoch {epoch}, which has not begun")));
            }
            Message::StoreRequest { id, epoch, call } => self.out.act(Action::CallStore { conn, id, epoch, call }),
            Message::Bye(why) => return Ok(Some(Cause::Known(LossCause::ClosedWithReason(why)))),
            Message::Alive(times) if kind == Kind::Node => self.receive_heartbeat(index, conn, times, now),
            Message::Ready if kind == Kind::Node => {
                peer.state = PeerState::Ready(conn);
                self.send_heartbeat(index, conn, now);
                self.start_if_ready();
            }
            Message::From { workers, message } if kind == Kind::Node => {
                let last = workers.get(workers.len().saturating_sub(1));
                if !(peer.workers.contains(workers.first()) && last.is_some_and(|last| peer.workers.contains(last))) {
                    return Err(Error::protocol(format!(
                        "a message of {workers}, and its workers are {}",
                        peer.workers
                    )));
                }
                self.receive_from_node(workers, *message, now)?;
            }
            Message::Left(stuck) if kind == Kind::Node => return Ok(Some(Cause::Left(stuck))),
            message if kind == Kind::Process => return self.receive_from_process(conn, worker, message),
            other => return Err(Error::protocol(other.to_string())),
        }
        Ok(None)
    }

    /// Handles a message of a node about some of its workers.
    fn receive_from_node(&mut self, workers: WorkerRange, message: Message, now: Instant) -> Result<()> {
        let worker = workers.first();
        match message {
            Message::Lost { .. } if fault::is_planted(Fault::LossIgnored) => {}
            // It has died before its node could tell it to leave.
            Message::Lost { .. } if self.leave == Leave::AtOnce => self.out.act(Action::Left(workers)),
            Message::Lost { cause, whole } => {
                if whole {
                    self.note_lost_behind(workers, &cause);
                }
                let Side::Nodes(side) = &self.side else { return Err(Error::protocol("a node's message")) };
                let peer = if whole {
                    self.lost_nodes(side, workers)
                } else {
                    LostPeer::Workers { workers, node: Some(self.node_of(side, worker)) }
                };
                let error = Error::peer_lost(peer, cause);
                tracing::info!(%error, "{}", if whole { "a node behind a peer is lost" } else { "a worker of a node is lost" });
                match self.phase {
                    // The other nodes need not start any more.
                    Phase::Starting(_) => self.give_up(&error, now),
                    _ => self.out.act(Action::Lost(workers, error)),
                }
            }
            Message::Signal(Signal::Shutdown) if self.leave > Leave::No || self.are_dismissed(workers) => {
                self.out.act(Action::Left(workers));
            }
            Message::Progress(progress) => {
                for worker in workers {
                    self.receive_from_worker(worker, Message::Progress(progress.clone()))?;
                }
            }
            Message::Reply { seq, reply: Ok(Value::None) } if workers.len() > 1 => {
                self.out.act(Action::Replies { workers, seq });
            }
            message if workers.len() > 1 => return Err(Error::protocol(format!("{message} of {workers}"))),
            Message::Output { is_err, line } => {
                let Side::Nodes(side) = &self.side else { return Err(Error::protocol("a node's message")) };
                let node = self.node_of(side, worker).number;
                if fault::is_planted(Fault::DoubleOutput) {
                    self.out.act(Action::Output { node, worker, is_err, line: line.clone() });
                }
                self.out.act(Action::Output { node, worker, is_err, line });
            }
            message => self.receive_from_worker(worker, message)?,
        }
        Ok(())
    }

    /// Handles a message that only worker processes send.
    fn receive_from_process(&mut self, conn: Conn, worker: WorkerId, message: Message) -> Result<Option<Cause>> {
        match message {
            Message::Share { name, .. } | Message::Unshare(name)
                if SharedFd::from_bits(name).owner() != Some(worker) =>
            {
                return Err(Error::protocol(format!("another worker's name of a descriptor: {name:#x}")));
            }
            Message::Share { id, name } => self.out.act(Action::Share { conn, id, name: SharedFd::from_bits(name) }),
            Message::Unshare(name) => self.out.act(Action::Unshare(SharedFd::from_bits(name))),
            Message::Receive { id, name } => {
                self.out.act(Action::Receive { conn, id, name: SharedFd::from_bits(name) });
            }
            Message::KeeperRequest { id, call } => self.out.act(Action::CallKeeper { conn, id, worker, call }),
            Message::Signal(Signal::Shutdown) => return Ok(Some(Cause::Left(String::new()))),
            message => self.receive_from_worker(worker, message)?,
        }
        Ok(None)
    }

    /// Handles a message that workers of processes and of nodes send.
    fn receive_from_worker(&mut self, worker: WorkerId, message: Message) -> Result<()> {
        match message {
            Message::Progress(progress) => {
                if let Some((peer, at)) = self.place(worker) {
                    self.peers[peer].note_progress(at, progress);
                }
            }
            Message::Reply { reply: Err(failure), .. } if failure.worker != worker => {
                return Err(Error::protocol(format!("a failure of {}", failure.worker)));
            }
            Message::Recording(bytes) => {
                let bytes = self.align(worker, bytes)?;
                self.out.act(Action::Recording { worker, bytes });
            }
            Message::Reply { seq, reply } => {
                let seq = seq + u64::from(fault::is_planted(Fault::StrayReply));
                self.out.act(Action::Reply { worker, seq, reply });
            }
            Message::Unread { seq, failure } => {
                self.out.act(Action::Reply { worker, seq, reply: Err(failure.of_worker(worker)) });
            }
            Message::Notice(packet) => {
                let notice = wire::decode_notice(Packet::split(&packet)?.0)?;
                let is_possible = match &notice {
                    Notice::Failed { epoch, failure } => failure.worker == worker && *epoch <= self.epoch,
                    _ => true,
                };
                if !is_possible {
                    return Err(Error::protocol(format!("the notice of another worker or epoch: {notice}")));
                }
                self.out.act(Action::Notice { worker, notice });
            }
            other => return Err(Error::protocol(other.to_string())),
        }
        Ok(())
    }
}
