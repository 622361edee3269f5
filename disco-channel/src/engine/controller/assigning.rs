//! Gives the nodes, which have all joined, their places in the tree.

use std::time::{Duration, Instant};

use disco_core::activity::Progress;
use disco_core::wire::{Assignment, Message};

use super::admission::{Applicant, Grown, Nodes, Redirected, Vacancy};
use super::batch::Batch;
use super::event::{Action, Order};
use super::machine::{Admission, Behind, Controller, JoinReply};
use super::peer::{PeerState, Process};
use crate::engine::tree::Forest;

impl Controller {
    /// Assigns numbers and workers to the children among the nodes, which have all joined, and sends the others to their
    /// parents.
    pub(super) fn assign(&mut self, Grown { children, others, forest }: Grown, now: Instant) {
        let (JoinReply::Assignment(assignment), Some(Admission::Nodes(nodes))) =
            (self.join_reply.clone(), self.admission.take())
        else {
            return;
        };
        // Nodes get 90 % of the time left, so that they report their error before the controller gives up.
        let left = self.phase_timeout().map_or(Duration::MAX, |end| end.saturating_duration_since(now));
        let left = left - left / 10;
        self.redirect(&nodes, others, &forest, left);
        for (index, Applicant { conn, join, .. }) in children.into_iter().enumerate() {
            let peer = &mut self.peers[index];
            let (node, workers, behind) =
                (self.first_node + peer.place as u32, peer.workers, forest.behind(peer.place).sizes());
            peer.name = nodes.terms.name(node, Some(&join.name));
            let assignment = Assignment { node, workers, behind, start: left, ..assignment.clone() };
            self.attach(index, PeerState::Starting(conn), conn, now);
            self.out.send(conn, &Message::Assign(assignment));
        }
        match nodes.start(&mut self.out) {
            Some(nodes) => self.admission = Some(Admission::Nodes(Box::new(nodes))),
            None => self.out.act(Action::StopAccepting),
        }
    }

    /// Sends nodes that stand by to another lane, which waits for nodes. Returns their number.
    pub(crate) fn vacate(&mut self, vacancy: Vacancy, now: Instant) -> usize {
        match &mut self.admission {
            Some(Admission::Nodes(nodes)) => nodes.vacate(vacancy, now, &mut self.out),
            _ => 0,
        }
    }

    /// Makes peers of the children in a tree, and sends the others to their parents, which have to accept them within `start`.
    fn redirect(&mut self, nodes: &Nodes, others: Vec<Redirected>, forest: &Forest, start: Duration) {
        for Redirected { place, joined, addresses } in others {
            let node = self.first_node + place as u32;
            self.out.send_as(joined.conn, &Message::Redirect { node, addresses, start }, Order::Last);
            self.out.act(Action::Close(joined.conn));
            let process = self.peer_at(place).map_or(Process::Unknown, |peer| self.peers[peer].process);
            let name = nodes.terms.name(node, Some(&joined.join.name));
            self.behind.insert(place, Behind { name, process, lost: None });
        }
        for (place, size) in forest.children() {
            let Some(peer) = self.peer_at(place) else { continue };
            let workers = self.workers.part(self.per_node * place, self.per_node * size);
            let peer = &mut self.peers[peer];
            (peer.workers, peer.behind) = (workers, size as u32 - 1);
            (peer.progress, peer.changed) = (vec![Progress::default(); workers.len()], vec![None; workers.len()]);
        }
        let behind = &self.behind;
        self.peers.retain(|peer| !behind.contains_key(&peer.place));
        (self.batch, self.depth) = (Batch::new(self.peers.len()), forest.depth());
    }
}
