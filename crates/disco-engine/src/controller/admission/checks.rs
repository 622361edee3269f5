//! Whether a node with the token fits the session, and gets a place or may stand by.

use std::time::Instant;

use disco_core::{Error, Result, function};

use super::applicant::Applicant;
use super::nodes::Nodes;
use super::terms::{NodeTerms, Tree};
use crate::controller::outbox::Outbox;
use crate::handshake::ALIVE_INTERVAL;

impl Nodes {
    /// Compares a node with the terms of the session.
    ///
    /// # Errors
    /// Why the node is refused.
    pub(super) fn compare(&self, joined: &Applicant) -> Result<()> {
        let NodeTerms { per_node, .. } = self.terms;
        if let Some(theirs) = joined.request.per_node.filter(|theirs| *theirs as usize != per_node) {
            return Err(Error::refused(format!(
                "it was started with {theirs} workers, and nodes of this session have {per_node}"
            )));
        }
        function::compare(&joined.join.functions)
    }

    /// Checks whether another node may stand by.
    ///
    /// # Errors
    /// Why it may not.
    pub(super) fn check_standby(&self) -> Result<()> {
        match &self.standby {
            None => Err(Error::refused("nodes can't stand by here; connect to the address of the session")),
            Some(standby) if standby.len() >= self.terms.max_pending => {
                Err(Error::refused(format!("{} nodes stand by already", standby.len())))
            }
            _ => Ok(()),
        }
    }

    /// Compares a node with the session, and with the nodes that have joined.
    ///
    /// # Errors
    /// Why the node is refused.
    pub(super) fn check(&mut self, joined: &Applicant, now: Instant, out: &mut Outbox) -> Result<()> {
        self.compare(joined)?;
        if joined.request.node.is_some() {
            // A node that froze and joins again may take the place of its own silent connection.
            let is_other = |it: &Applicant| it.request.node != joined.request.node;
            self.retain(out, |it| is_other(it) || it.liveness.silence(now) < ALIVE_INTERVAL * 2);
        }
        let taken = |id| self.joined.values().find(|other| other.request.node == Some(id));
        let refused = match (joined.request.node, &self.terms.tree) {
            (Some(id), Tree::Any { first, nodes, .. }) if !(*first..first + *nodes as u32).contains(&id) => {
                let last = first + *nodes as u32 - 1;
                Some(format!("nodes of this session are {first} to {last}, and it is {id}"))
            }
            (id, Tree::Fixed { parent, .. }) if id.is_none_or(|id| self.terms.numbers().all(|number| number != id)) => {
                Some(format!("it is no child of node {parent}"))
            }
            _ if self.is_complete() => Some("all nodes have joined".to_owned()),
            (Some(id), _) => taken(id).map(|other| format!("node {id} has joined already: {}", other.join.name)),
            (None, _) => None,
        };
        refused.map_or(Ok(()), |why| Err(Error::Refused(why)))
    }
}
