//! The controller's end of a lane to worker processes or nodes, each of which is a peer.
//!
//! ```text
//!  connection ──▶ admission ──▶ peer ─────────────────▶ closed ────────▶ reported ───────▶ gone
//!                 (limited in    (HELLO or JOIN taken;   (its process     (lost, left, or   (nothing is
//!                 number and     silence, credit,        may tell why)    the start fails)  left of it)
//!                 time)          progress)
//!  frames ──▶ batch ───────────▶ each peer's connection, or the ring
//! ```
//!
//! A lane starts: it admits connections until each peer has come, and for nodes until each is ready. Then it runs until it is closed
//! or dropped: peers are told to leave, have their time for it, and what is left of them is closed or killed.

mod admission;
mod batch;
mod closing;
mod event;
mod hear;
mod machine;
mod outbox;
mod peer;
mod submit;

#[cfg(test)]
mod tests;

pub(crate) use admission::NodeTerms;
pub(crate) use batch::{ENOUGH, pack, pack_after, pack_beside};
pub(crate) use event::{Action, Conn, Event, Order, Origin, Write};
pub(crate) use machine::{Controller, Terms};
