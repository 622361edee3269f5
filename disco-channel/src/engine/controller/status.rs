//! The state of nodes and their workers, for operators.

use std::time::Instant;

use disco_core::WorkerId;
use disco_core::status::{ConnectionStatus, Known, NodeState, NodeStatus};

use super::event::Conn;
use super::machine::Controller;
use super::peer::{Kind, Peer, PeerState};

impl Controller {
    /// The nodes in the order of their numbers, each with its connection. A node behind another one has the state of
    /// the peer that relays for it, and no connection of this end.
    pub(crate) fn nodes(&self, now: Instant) -> Vec<(Option<Conn>, NodeStatus)> {
        let mut nodes = Vec::new();
        for peer in self.peers.iter().filter(|_| self.kind == Kind::Node) {
            for place in peer.place..=peer.place + peer.behind as usize {
                let behind = self.behind.get(&place);
                let name = behind.map_or(&peer.name, |behind| &behind.name).clone();
                let workers = self.workers.part(self.per_node * place, self.per_node);
                let mut status = NodeStatus::new(self.first_node + place as u32, name, workers, peer.describe());
                let conn = peer.conn().filter(|_| behind.is_none());
                status.connection = conn.map(|_| {
                    let mut connection = ConnectionStatus::default();
                    connection.silence = peer.liveness.silence(now);
                    connection
                });
                nodes.push((conn, status));
            }
        }
        nodes
    }

    /// What this end knows of a worker. The time is `None` if its progress has not changed yet.
    pub(crate) fn known(&self, worker: WorkerId) -> Known {
        let mut known = Known::new(self.progress(worker));
        if let Some((peer, at)) = self.place(worker) {
            let peer = &self.peers[peer];
            (known.unchanged, known.place) = (peer.changed[at].map(|changed| changed.elapsed()), peer.ids);
        }
        known
    }
}

impl Peer {
    fn describe(&self) -> NodeState {
        match &self.state {
            PeerState::Expected => NodeState::Expected,
            PeerState::Joined(_) => NodeState::Starting,
            PeerState::Ready(_) => NodeState::Running,
            PeerState::Closed(_, cause) | PeerState::Reported(cause) | PeerState::Gone(cause) => {
                NodeState::Ended(cause.to_string())
            }
        }
    }
}
