//! The member's end of a remote lane: the service thread of a worker process, or a node.
//!
//! A member [introduces itself](joining) until the controller takes or refuses it. Then it [serves](serving): it passes on what
//! the controller says, acknowledges frames, reports what its workers do, sends heartbeats, and stops its workers once they are
//! told to leave or the controller is gone. A node's workers speak through the node ([`upward`]).

pub(crate) mod joining;
pub(crate) mod serving;
pub(crate) mod upward;

#[cfg(test)]
mod tests;
