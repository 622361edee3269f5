//! The state of nodes and their workers, for operators.

use std::time::{Duration, Instant};

use disco_core::WorkerId;
use disco_core::status::{ConnectionStatus, NodeState, NodeStatus};

use super::event::Conn;
use super::machine::Controller;
use super::peer::{Kind, Peer, PeerState};

impl Controller {
    /// The nodes, each with its connection.
    pub(crate) fn nodes(&self, now: Instant) -> Vec<(Option<Conn>, NodeStatus)> {
        let nodes = self.peers.iter().enumerate().filter(|_| self.kind == Kind::Node);
        nodes.map(|(index, peer)| (peer.conn(), peer.describe(index as u32 + 1, now))).collect()
    }

    /// Time since the progress of a worker changed; `None` if it has not changed yet.
    pub(crate) fn unchanged(&self, worker: WorkerId) -> Option<Duration> {
        let (peer, at) = self.place(worker)?;
        self.peers[peer].changed[at].map(|changed| changed.elapsed())
    }
}

impl Peer {
    fn describe(&self, node: u32, now: Instant) -> NodeStatus {
        let state = match &self.state {
            PeerState::Expected => NodeState::Expected,
            PeerState::Joined(_) => NodeState::Starting,
            PeerState::Ready(_) => NodeState::Running,
            PeerState::Closed(_, cause) | PeerState::Reported(cause) | PeerState::Gone(cause) => {
                NodeState::Ended(cause.to_string())
            }
        };
        let mut status = NodeStatus::new(node, self.name.clone(), self.workers, state);
        status.connection = self.conn().map(|_| {
            let mut connection = ConnectionStatus::default();
            connection.silence = self.liveness.silence(now);
            connection
        });
        status
    }
}
