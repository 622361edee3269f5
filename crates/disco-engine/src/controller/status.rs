//! The state of nodes and their workers, for operators.

use std::fmt;
use std::time::Instant;

use disco_core::error::LossCause;
use disco_core::status::{ConnectionStatus, Known, NodeState, NodeStatus, SpareStatus};
use disco_core::{WorkerId, WorkerRange};

use super::event::Conn;
use super::machine::Controller;
use super::peer::{Cause, Peer, PeerState};
use super::side::{Behind, Side};

impl Controller {
    /// The nodes in the order of their numbers, each with its connection. A node behind another one has no connection of
    /// this end; while it is not lost, it has the state of the peer that relays for it.
    pub fn nodes(&self, now: Instant) -> Vec<(Option<Conn>, NodeStatus)> {
        let mut nodes = Vec::new();
        let Side::Nodes(side) = &self.side else { return nodes };
        for peer in &self.peers {
            for place in peer.place..=peer.place + peer.behind as usize {
                let behind = side.behind.get(&place);
                let (name, state) = match behind {
                    None => (&peer.name, peer.describe()),
                    Some(behind) => (&behind.name, peer.describe_behind(behind)),
                };
                let workers = side.workers_of(self.workers, place, 1);
                let mut status = NodeStatus::new(side.number(place), name.clone(), workers, state);
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

    /// The nodes that stand by, each with its connection.
    pub fn spares(&self, now: Instant) -> Vec<(Conn, SpareStatus)> {
        let Side::Nodes(side) = &self.side else { return Vec::new() };
        let spares = side.admission.iter().flat_map(|nodes| nodes.spares());
        spares.map(|spare| (spare.conn, spare.describe(now))).collect()
    }

    /// The number of nodes that stand by.
    pub fn count_spares(&self) -> usize {
        let Side::Nodes(side) = &self.side else { return 0 };
        side.admission.iter().flat_map(|nodes| nodes.spares()).count()
    }

    /// Records the loss of a node behind a peer, which its relay has reported, and of the nodes that it relayed for.
    pub(super) fn note_lost_behind(&mut self, workers: WorkerRange, cause: &LossCause) {
        let (Some(first), Side::Nodes(side)) = (self.workers.position(workers.first()), &mut self.side) else { return };
        let places = first / side.per_node..(first + workers.len()).div_ceil(side.per_node);
        let Some(name) = side.behind.get(&places.start).map(|behind| behind.name.clone()) else { return };
        for (place, behind) in side.behind.range_mut(places.clone()) {
            // The first report of a node is that of the relay nearest to it.
            behind.lost.get_or_insert_with(|| {
                if *place == places.start { cause.to_string() } else { lost_with(&name, cause) }
            });
        }
    }

    /// The state of a worker as this end knows it. The time is `None` if its progress has not changed yet.
    pub fn known(&self, worker: WorkerId, now: Instant) -> Known {
        let mut known = Known::new(self.progress(worker));
        if let Some((peer, at)) = self.place(worker) {
            let peer = &self.peers[peer];
            (known.unchanged, known.place) =
                (peer.changed[at].map(|changed| now.saturating_duration_since(changed)), peer.ids);
        }
        known
    }
}

impl Peer {
    fn describe(&self) -> NodeState {
        match &self.state {
            PeerState::Expected => NodeState::Expected,
            PeerState::Starting(_) => NodeState::Starting,
            PeerState::Ready(_) => NodeState::Running,
            PeerState::Closed(_, cause) | PeerState::Reported(cause) | PeerState::Ended(cause) => {
                NodeState::Ended(cause.to_string())
            }
        }
    }

    /// The state of a node behind this peer.
    fn describe_behind(&self, behind: &Behind) -> NodeState {
        match (&behind.lost, self.cause()) {
            (Some(why), _) => NodeState::Ended(why.clone()),
            (None, Some(cause @ (Cause::Known(_) | Cause::Unknown))) => NodeState::Ended(lost_with(&self.name, cause)),
            _ => self.describe(),
        }
    }
}

/// Why a node is lost that the lost node `relay` relayed for.
fn lost_with(relay: &str, cause: &impl fmt::Display) -> String {
    format!("{relay}, which relayed for it, is lost: {cause}")
}
