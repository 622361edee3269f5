//! The controller's end of a lane to worker processes or nodes, each of which is a peer.
//!
//! ```text
//!  connection ──▶ admission ──▶ peer ─────────────────▶ closed ────────▶ reported ───────▶ ended
//!                 (limited in    (after HELLO or JOIN;   (waits for the   (lost, left, or   (process and
//!                 number and     silence, credit,        process's exit   the start fails)  connection
//!                 time)          progress)               status)                            have ended)
//!  frames ──▶ batch ───────────▶ each peer's connection, or the ring
//! ```
//!
//! Nodes may relay for others: a peer is then a node with the nodes behind it, which it has joined in place of this end.
//! The node is their controller, with an engine of the same kind.
//!
//! While the lane starts, it admits connections until each peer has joined and started its workers. Then it runs until
//! it is closed or dropped: peers are told to leave and get a grace period, after which connections are closed and
//! processes killed.

mod admission;
mod admitting;
mod assigning;
mod batch;
mod closing;
mod event;
mod heartbeats;
mod machine;
mod outbox;
mod peer;
mod phase;
mod receive;
mod side;
mod status;
mod submit;

#[cfg(test)]
mod tests;

pub use admission::{MAX_PENDING, Missing, NodeTerms, Tree, Vacancy};
pub use batch::{FULL_BATCH_BYTES, Load, pack, pack_after, pack_beside};
pub use event::{Action, Conn, Event, Order, Origin, Write};
pub use machine::{Controller, Terms};
