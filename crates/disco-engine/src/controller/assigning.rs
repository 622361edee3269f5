//! Gives the nodes, which have all joined, their places in the tree.

use std::time::{Duration, Instant};

use disco_core::activity::Progress;
use disco_core::wire::{Assignment, Message};

use super::admission::{Applicant, Grown, Nodes, Redirected, Vacancy};
use super::batch::Batch;
use super::event::{Action, Order};
use super::machine::Controller;
use super::peer::{Peer, PeerState, Process};
use super::side::{Behind, Side};
use crate::tree::Forest;

impl Controller {
    /// Assigns numbers and workers to the children among the nodes, which have all joined, and sends the others to their
    /// parents.
    pub(super) fn assign(&mut self, Grown { children, others, forest }: Grown, now: Instant) {
        // Nodes get 90 % of the time left, so that they report their error before the controller gives up.
        let left = self.phase_timeout().map_or(Duration::MAX, |end| end.saturating_duration_since(now));
        let left = left - left / 10;
        let Side::Nodes(side) = &mut self.side else { return };
        let Some(nodes) = side.admission.take() else { return };
        let (assignment, first_node) = (side.assignment.clone(), side.first_node);
        self.redirect(&nodes, others, &forest, left);
        for (index, Applicant { conn, join, .. }) in children.into_iter().enumerate() {
            let peer = &mut self.peers[index];
            let (node, workers, behind) =
                (first_node + peer.place as u32, peer.workers, forest.behind(peer.place).sizes());
            peer.name = nodes.terms.name(node, Some(&join.name));
            let assignment = Assignment { node, workers, behind, start: left, ..assignment.clone() };
            self.attach(index, PeerState::Starting(conn), conn, now);
            self.out.send(conn, &Message::Assign(assignment));
        }
        let nodes = nodes.start(&mut self.out);
        match (nodes, &mut self.side) {
            (Some(nodes), Side::Nodes(side)) => side.admission = Some(Box::new(nodes)),
            _ => self.out.act(Action::StopAccepting),
        }
    }

    /// Sends nodes that stand by to another lane, which waits for nodes. Returns their number.
    pub fn vacate(&mut self, vacancy: Vacancy, now: Instant) -> usize {
        self.side.admission_of_nodes().map_or(0, |nodes| nodes.vacate(vacancy, now, &mut self.out))
    }

    /// Makes peers of the children in a tree, and sends the others to their parents, which have to accept them within `start`.
    fn redirect(&mut self, nodes: &Nodes, others: Vec<Redirected>, forest: &Forest, start: Duration) {
        let Self { side: Side::Nodes(side), peers, out, .. } = self else { return };
        let peer_at = |peers: &[Peer], place| peers.binary_search_by_key(&place, |peer| peer.place).ok();
        for Redirected { place, joined, addresses } in others {
            let node = side.number(place);
            out.send_as(joined.conn, &Message::Redirect { node, addresses, start }, Order::Last);
            out.act(Action::Close(joined.conn));
            let process = peer_at(peers, place).map_or(Process::Unknown, |peer| peers[peer].process);
            let name = nodes.terms.name(node, Some(&joined.join.name));
            side.behind.insert(place, Behind { name, process, lost: None });
        }
        for (place, size) in forest.children() {
            let Some(peer) = peer_at(peers, place) else { continue };
            let (workers, peer) = (side.workers_of(self.workers, place, size), &mut peers[peer]);
            (peer.workers, peer.behind) = (workers, size as u32 - 1);
            (peer.progress, peer.changed) = (vec![Progress::default(); workers.len()], vec![None; workers.len()]);
        }
        peers.retain(|peer| !side.behind.contains_key(&peer.place));
        (self.batch, side.depth) = (Batch::new(peers.len()), forest.depth());
    }
}
