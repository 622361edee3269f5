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
//!                                         └ link                         a connection: encrypted, in clear, or a ring in shared memory
//! ```
//!
//! A communicator is made by `connect`: each rank writes into the session's store at which addresses it listens (`contact`,
//! `listeners`), and the higher rank of each pair connects to the lower one (`dial`, at several addresses in a `race`); after a
//! second without a connection, the lower one connects, too. A HELLO and a handshake with the key of the communicator, which the
//! controller has made for it, prove both ends (`hello`, `handshake`, [`disco_engine::rank_handshake`]). So bytes of another
//! communicator, or of an earlier epoch, are never read. Ranks of one machine map each other's memory before (`neighbours`), and
//! their bytes go through it afterwards.
//!
//! A rank whose operation fails records the cause in the session's store, and ends its connections with it (`goodbye`); the
//! others find them ended, and report that cause.

#[cfg(not(loom))]
mod alarm;
#[cfg(not(loom))]
mod backend;
#[cfg(not(loom))]
mod buffers;
#[cfg(not(loom))]
mod collective;
#[cfg(not(loom))]
mod communicator;
#[cfg(not(loom))]
mod connect;
#[cfg(not(loom))]
mod contact;
#[cfg(not(loom))]
mod dial;
#[cfg(not(loom))]
mod exchange;
#[cfg(all(fuzzing, not(loom)))]
#[doc(hidden)]
pub mod fuzzing;
#[cfg(not(loom))]
mod goodbye;
#[cfg(not(loom))]
mod handshake;
#[cfg(not(loom))]
mod head;
#[cfg(not(loom))]
mod hello;
#[cfg(not(loom))]
mod link;
#[cfg(not(loom))]
mod listeners;
#[cfg(not(loom))]
mod machines;
#[cfg(not(loom))]
mod neighbours;
#[cfg(not(loom))]
mod party;
#[cfg(not(loom))]
mod plan;
#[cfg(not(loom))]
mod point_to_point;
#[cfg(not(loom))]
mod race;
#[cfg(not(loom))]
mod rank_state;
#[cfg(not(loom))]
mod rendezvous;
#[cfg_attr(loom, allow(dead_code, reason = "models use a part of it"))]
mod ring;
#[cfg(not(loom))]
mod shares;
#[cfg(not(loom))]
mod transfer;
#[cfg(not(loom))]
mod wires;

#[cfg(not(loom))]
pub use backend::{BACKEND, Tcp};
#[cfg(not(loom))]
pub use communicator::Communicator;

#[cfg(not(loom))]
/// The name of the backend.
pub(crate) const NAME: &str = "tcp";
