//! The member's end of a remote lane: the service thread of a worker process, or a node.
//!
//! A member [joins](joining): it introduces itself, and the controller accepts or refuses it. Then it
//! [serves](serving): it passes on messages of the controller, acknowledges frames, reports the progress of its
//! workers, sends heartbeats, and stops its workers at shutdown or when the controller is lost. A node relays the
//! messages of its workers ([`upward`]). It ends (`ending`) after a shutdown, a failure or a loss.

mod ending;
mod heartbeats;
pub mod joining;
pub mod serving;
pub mod upward;

#[cfg(test)]
mod tests;
