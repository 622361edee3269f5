//! Grows the tree of the nodes once all have joined.

use std::collections::BTreeMap;
use std::net::SocketAddr;

use disco_core::wire::Message;

use super::applicant::Applicant;
use super::nodes::Nodes;
use super::terms::Tree;
use crate::controller::event::Conn;
use crate::controller::outbox::Outbox;
use crate::tree::Forest;

/// The nodes, which have all joined, in their tree.
#[derive(Debug)]
pub(crate) struct Grown {
    /// The nodes that are children of this end, in the order of their places.
    pub(crate) children: Vec<Applicant>,
    /// The other nodes.
    pub(crate) others: Vec<Redirected>,
    pub(crate) forest: Forest,
}

/// A node that has to join its parent.
#[derive(Debug)]
pub(crate) struct Redirected {
    pub(crate) place: usize,
    pub(crate) joined: Applicant,
    /// Where the parent listens.
    pub(crate) addresses: Vec<String>,
}

impl Nodes {
    /// Puts the nodes, which have all joined, into their tree. Returns `None` until all nodes that will relay listen.
    pub(crate) fn grow(&mut self, out: &mut Outbox) -> Option<Grown> {
        let places = self.places();
        match &self.terms.tree {
            Tree::Any { nodes, fan_out, .. } => {
                let begins =
                    |at: usize| at > 0 && self.joined[&places[at - 1]].rack() != self.joined[&places[at]].rack();
                let forest = Forest::grow(*nodes, *fan_out, begins);
                self.have_parents_listen(&places, &forest, out).then(|| self.split(places, forest))
            }
            Tree::Fixed { forest, .. } => {
                let forest = forest.clone();
                let children = places.iter().filter_map(|conn| self.joined.remove(conn)).collect();
                Some(Grown { children, others: Vec::new(), forest })
            }
        }
    }

    /// Splits the nodes, whose connections are in the order of their places, into the children of this end and the others.
    fn split(&mut self, places: Vec<Conn>, forest: Forest) -> Grown {
        let listens = |parent: usize| self.joined.get(&places[parent])?.listens.clone();
        let addresses: Vec<_> = forest.parents().into_iter().map(|parent| parent.and_then(listens)).collect();
        let (mut children, mut others) = (Vec::new(), Vec::new());
        for (place, (conn, addresses)) in places.into_iter().zip(addresses).enumerate() {
            let Some(joined) = self.joined.remove(&conn) else { continue };
            match addresses {
                None => children.push(joined),
                Some(addresses) => others.push(Redirected { place, joined, addresses }),
            }
        }
        Grown { children, others, forest }
    }

    /// Has the nodes listen that relay for others. Returns whether all do.
    fn have_parents_listen(&mut self, places: &[Conn], forest: &Forest, out: &mut Outbox) -> bool {
        let everywhere = self.joined.values().any(|joined| !joined.address.ip().is_loopback());
        let mut all = true;
        for at in (0..forest.nodes()).filter(|at| forest.relays(*at)) {
            let Some(joined) = self.joined.get_mut(&places[at]) else { continue };
            all &= joined.listens.is_some();
            if !std::mem::replace(&mut joined.is_asked, true) {
                out.send(joined.conn, &Message::Relay { everywhere });
            }
        }
        all
    }

    /// The connection of the node in each place. Nodes without a number get the free places in the order of their racks
    /// and names, so that the order in which nodes join matters little.
    fn places(&self) -> Vec<Conn> {
        let (named, mut others): (Vec<_>, Vec<_>) =
            self.joined.values().partition(|joined| joined.request.node.is_some());
        others.sort_by_key(|joined| joined.order());
        // `check` has verified the numbers.
        let mut named: BTreeMap<u32, &Applicant> =
            named.into_iter().filter_map(|joined| Some((joined.request.node?, joined))).collect();
        let mut others = others.into_iter();
        let places = self.terms.numbers().filter_map(|number| named.remove(&number).or_else(|| others.next()));
        places.map(|joined| joined.conn).collect()
    }
}

impl Applicant {
    /// The part of the network that the node is in: its rack, or its host.
    fn rack(&self) -> &str {
        if self.join.rack.is_empty() { &self.join.name } else { &self.join.rack }
    }

    fn order(&self) -> (&str, &str, SocketAddr) {
        (&self.join.rack, &self.join.name, self.address)
    }
}
