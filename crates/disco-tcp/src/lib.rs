//! The host data plane of Disco between machines: collectives over TCP, authenticated and, unless `DISCO_ENCRYPT` is 0,
//! encrypted.
//!
//! The backend needs no library of the system, and supports every [`Op`](disco_core::Op) on every dtype. Results have the bits
//! of `local`: they depend on the ranks' inputs and their order only.
//!
//! ```text
//! Communicator ── Background ─▶ RankState      one rank, which its operations use in turn: on the worker's thread, or beside it
//!                                └ collective, shares, point_to_point    schedules: which bytes go to which rank
//!                                   └ plan                               their messages and computations, and what these wait for
//!                                      └ exchange                        moves messages that go out and come in at the same time
//!                                         └ link                         a connection, in clear or encrypted
//! ```
//!
//! A communicator is made by `connect`: each rank writes into the session's store at which addresses it listens (`contact`,
//! `listeners`), and the higher rank of each pair connects to the lower one (`dial`, at several addresses in a `race`); after a
//! second without a connection, the lower one connects, too. A HELLO and a handshake with the key of the communicator, which the
//! controller has made for it, prove both ends (`hello`, `handshake`, [`disco_engine::rank_handshake`]). So bytes of another
//! communicator, or of an earlier epoch, are never read. Ranks of one machine map each other's memory before (`neighbours`), and
//! their bytes go through it afterwards.
//!
//! A rank whose operation fails records the cause in the session's store and ends its connections; the others find them ended,
//! and report that cause.

mod alarm;
mod backend;
mod buffers;
mod collective;
mod communicator;
mod connect;
mod contact;
mod dial;
mod exchange;
#[cfg(fuzzing)]
#[doc(hidden)]
pub mod fuzzing;
mod handshake;
mod head;
mod hello;
mod link;
mod listeners;
mod machines;
mod neighbours;
mod party;
mod plan;
mod point_to_point;
mod race;
mod rank_state;
mod rendezvous;
mod shares;
mod transfer;
mod wires;

pub use backend::{BACKEND, Tcp};
pub use communicator::Communicator;

/// The name of the backend.
pub(crate) const NAME: &str = "tcp";
