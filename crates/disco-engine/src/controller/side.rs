//! What a lane to nodes and a lane to worker processes do not have in common.

use std::collections::BTreeMap;

use disco_core::WorkerRange;
use disco_core::wire::{Assignment, Welcome};

use super::admission::{Nodes, Processes};
use super::peer::{Kind, Process};

/// The peers of a lane are of one kind.
#[derive(Debug)]
pub(super) enum Side {
    Nodes(NodeSide),
    Processes(ProcessSide),
}

/// Peers that are nodes.
#[derive(Debug)]
pub(super) struct NodeSide {
    /// Connections that are not peers, and nodes that stand by; `None` once no connections are accepted.
    pub(super) admission: Option<Box<Nodes>>,
    /// The configuration that nodes are sent, each with its number and workers.
    pub(super) assignment: Assignment,
    /// The number of the first node, and the number of workers of each.
    pub(super) first_node: u32,
    pub(super) per_node: usize,
    /// Connections between this end and the farthest node.
    pub(super) depth: u32,
    /// The nodes behind peers, by their places. Empty on a node that relays, which knows neither their names nor their
    /// processes.
    pub(super) behind: BTreeMap<usize, Behind>,
}

/// A node behind a peer.
#[derive(Debug)]
pub(super) struct Behind {
    pub(super) name: String,
    pub(super) process: Process,
    /// Why it is lost, if a node that relays has reported that.
    pub(super) lost: Option<String>,
}

/// Peers that are worker processes.
#[derive(Debug)]
pub(super) struct ProcessSide {
    /// Connections that are not peers; `None` once no connections are accepted.
    pub(super) admission: Option<Processes>,
    /// The configuration that processes are sent, each with its place in the ring.
    pub(super) welcome: Welcome,
    /// Whether the processes are watched, and killed if they do not end.
    pub(super) watches: bool,
}

impl Side {
    pub(super) const fn kind(&self) -> Kind {
        match self {
            Self::Nodes(_) => Kind::Node,
            Self::Processes(_) => Kind::Process,
        }
    }

    /// The nodes, if the peers are nodes and connections are accepted.
    pub(super) fn admission_of_nodes(&mut self) -> Option<&mut Nodes> {
        match self {
            Self::Nodes(side) => side.admission.as_deref_mut(),
            Self::Processes(_) => None,
        }
    }

    /// The nodes behind peers, by their places.
    pub(super) fn behind(&self) -> impl Iterator<Item = (usize, &Behind)> {
        let behind = match self {
            Self::Nodes(side) => Some(&side.behind),
            Self::Processes(_) => None,
        };
        behind.into_iter().flatten().map(|(place, behind)| (*place, behind))
    }

    /// Limit for the bytes of the values of one command or reply.
    pub(super) fn value_limit(&self) -> usize {
        match self {
            Self::Nodes(side) => side.assignment.config.value_limit,
            Self::Processes(side) => side.welcome.config.value_limit,
        }
    }
}

impl NodeSide {
    /// The workers of the node in a place and of `size - 1` nodes behind it, among those of the lane.
    pub(super) fn workers_of(&self, all: WorkerRange, place: usize, size: usize) -> WorkerRange {
        all.part(self.per_node * place, self.per_node * size)
    }

    /// The number of the node in a place.
    pub(super) const fn number(&self, place: usize) -> u32 {
        self.first_node + place as u32
    }
}
