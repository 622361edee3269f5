//! The requirements for the nodes to admit: their numbers, names and places.

use std::time::Duration;

use disco_core::World;

use super::standby::Missing;
use crate::handshake::Secret;
use crate::tree::Forest;

/// The requirements for nodes.
#[allow(clippy::exhaustive_structs, reason = "a lane sets every term")]
#[derive(Debug)]
pub struct NodeTerms {
    /// The token that nodes and controller prove to each other, and whether connections are encrypted.
    pub secret: Secret,
    /// The sizes that nodes and controller must agree on.
    pub world: World,
    /// The numbers and places of the nodes.
    pub tree: Tree,
    /// Names of nodes in messages; a node without a name is called by its number.
    pub names: Vec<String>,
    /// Number of workers of each node.
    pub per_node: usize,
    /// Silence timeout of each end.
    pub silence: Duration,
    /// Maximum number of connections that have not joined.
    pub max_pending: usize,
    /// Whether connections are accepted after the start, too.
    pub stays_open: bool,
    /// Whether nodes may stand by. The lane stays after the loss of all its nodes then, until it is closed.
    pub has_standby: bool,
    /// Tells other lanes how many nodes this lane waits for.
    pub missing: Missing,
    /// Gets the nodes with the token that are refused, with the reasons, to be shown to the user.
    pub report: fn(&str),
}

/// The nodes to admit.
#[allow(
    clippy::exhaustive_enums,
    missing_docs,
    reason = "engine and lane know all variants, whose texts name the fields"
)]
#[derive(Debug)]
pub enum Tree {
    /// `nodes` nodes, numbered from `first`; each end has at most `fan_out` children.
    Any { first: u32, nodes: usize, fan_out: usize },
    /// The children of node `parent`, which are the first nodes of these trees.
    Fixed { parent: u32, forest: Forest },
}

impl NodeTerms {
    /// The numbers of the nodes to admit, in the order of their places.
    pub(super) fn numbers(&self) -> impl Iterator<Item = u32> {
        let (any, fixed) = match &self.tree {
            Tree::Any { first, nodes, .. } => (Some(*first..first + *nodes as u32), None),
            Tree::Fixed { parent, forest } => {
                (None, Some(forest.children().map(move |(at, _)| parent + 1 + at as u32)))
            }
        };
        any.into_iter().flatten().chain(fixed.into_iter().flatten())
    }

    /// Number of nodes to admit.
    pub(super) fn count(&self) -> usize {
        match &self.tree {
            Tree::Any { nodes, .. } => *nodes,
            Tree::Fixed { forest, .. } => forest.children().count(),
        }
    }

    /// The name of a node; `host` is the name that the node has sent with its JOIN.
    pub(crate) fn name(&self, number: u32, host: Option<&str>) -> String {
        match (self.names.get(number as usize - 1), host) {
            (Some(name), _) => name.clone(),
            (None, Some(host)) => format!("node {number} ({host})"),
            (None, None) => format!("node {number}"),
        }
    }

    /// The number of the first node below this end, and the trees if they are known from the start.
    pub(crate) fn shape(&self) -> (u32, Forest) {
        match &self.tree {
            Tree::Any { first, nodes, .. } => (*first, Forest::flat(*nodes)),
            Tree::Fixed { parent, forest } => (parent + 1, forest.clone()),
        }
    }
}
