//! What the ends of a remote lane decide, without a clock, a socket, a thread or a lock.
//!
//! ```text
//!  lane's methods ──┐  events, now   ┌──────────────┐  writes     ┌──────────────────────┐
//!                   ├───────────────▶│    engine    │────────────▶│ connections (sockets)│
//!  reactor thread ──┘                │ (state only) │  actions    ├──────────────────────┤
//!        ▲                           │              │────────────▶│ inbox, store, kills  │
//!        └── waits until ────────────│ next_timeout │             └──────────────────────┘
//!                                    └──────────────┘
//! ```
//!
//! An engine is a state machine. Each event comes with the time at which it came; what follows from it is queued: bytes to be
//! written, which the thread that brought the event writes, and actions, which the reactor thread carries out, in order. Between
//! events the engine only wants to be asked again at [`controller::Controller::next_timeout`]. So a test or a simulation can drive
//! it with times and connections that do not exist.
//!
//! The [`member`] end is a worker process or a node, the [`controller`] end one lane to all of them.

pub(crate) mod controller;
pub(crate) mod credit;
pub(crate) mod fault;
pub(crate) mod limits;
mod liveness;
pub(crate) mod member;
pub(crate) mod questions;
pub(crate) mod reply;
#[cfg(test)]
mod sim;
pub(crate) mod transfers;

pub(crate) use liveness::{Attention, Liveness};
