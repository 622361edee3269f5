//! Nodes that the session has started itself: they end with it.

use std::os::fd::{AsFd, BorrowedFd};
use std::process::Child;
use std::time::{Duration, Instant};

use disco_core::{Error, Result};

use crate::process::Process;

/// Limit for nodes to end once they were let go of, after which they are killed: longer than a node whose controller is gone gives
/// its workers.
const LEAVE: Duration = Duration::from_secs(2);

/// The process of a node that the session has started. Dropping it kills it.
#[derive(Debug)]
pub struct NodeProcess(Process);

impl NodeProcess {
    /// Takes charge of a process that was just started.
    ///
    /// # Errors
    /// The system can't watch it; it is killed then.
    pub fn new(child: Child) -> Result<Self> {
        let process = Process::child(child);
        process.map(Self).map_err(|error| Error::invalid(format!("the process of a node can't be watched: {error}")))
    }
}

/// All of them, in the order of nodes. None where nodes are started elsewhere.
#[derive(Debug, Default)]
pub(super) struct Children {
    nodes: Vec<NodeProcess>,
    /// When they were let go of.
    since: Option<Instant>,
}

impl Children {
    /// Takes charge of all of them.
    pub(super) fn adopt(&mut self, nodes: Vec<NodeProcess>) {
        self.nodes.extend(nodes);
    }

    /// What becomes readable when one of them has ended.
    pub(super) fn exits(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        self.nodes.iter().filter_map(|node| Some(node.0.exit()?.as_fd()))
    }

    /// Takes in which of them have ended.
    pub(super) fn reap(&mut self) {
        for (index, node) in self.nodes.iter_mut().enumerate() {
            if let Err(error) = node.0.reap() {
                tracing::warn!(node = index + 1, %error, "its process can't be waited for");
            }
        }
    }

    /// Ends one of them at once.
    pub(super) fn kill(&mut self, index: usize) {
        if let Some(Err(error)) = self.nodes.get(index).map(|node| node.0.kill()) {
            tracing::warn!(node = index + 1, %error, "its process can't be killed");
        }
    }

    /// They were let go of: kills those that have not ended for too long. Returns whether all have ended.
    pub(super) fn have_ended(&mut self) -> bool {
        self.reap();
        let is_late = self.since.get_or_insert_with(Instant::now).elapsed() > LEAVE;
        if is_late {
            (0..self.nodes.len()).for_each(|index| self.kill(index));
        }
        self.nodes.iter().all(|node| node.0.has_ended())
    }
}
