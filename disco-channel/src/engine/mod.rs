//! The protocol logic of remote lanes, without I/O: no clock, socket, thread or lock (sans-I/O).
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
//! An engine is a state machine. Each event comes with its time. The engine queues the results: bytes to write, which
//! the thread that brought the event writes, and actions, which the reactor thread carries out in order. Between
//! events, the engine needs a timer event at [`controller::Controller::next_timeout`]. Tests and the simulation drive
//! it with virtual time and connections.
//!
//! The [`member`] end is one worker process or node; the [`controller`] end is one lane to all of them.

pub(crate) mod clock;
pub(crate) mod controller;
pub(crate) mod credit;
pub(crate) mod fault;
pub(crate) mod limits;
mod liveness;
pub(crate) mod member;
pub(crate) mod pending_requests;
pub(crate) mod reply;
#[cfg(test)]
mod sim;
pub(crate) mod transfers;
pub(crate) mod tree;

pub(crate) use liveness::{Attention, Liveness};
