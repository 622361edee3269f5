//! The built-in host data plane of Disco: ranks are threads of one process, or processes of one machine that share
//! memory, and peers read each other's tensors in place.
//!
//! The backend has no dependencies on the system and supports every [`Op`](disco_core::Op) on every dtype. Results are
//! deterministic: all ranks and all runs get the same bits. The conformance suite therefore compares other backends
//! with this one.
//!
//! ```text
//! Communicator ── Arc ─▶ Group            shared by all ranks: presence, failure, and the Board in shared memory
//!   └ Seat                                 one rank, which its operations use in turn: on the worker's thread, or beside it
//!      └ run ─▶ ActiveCall ─▶ Memory       one rank inside one call; the permission to access published memory
//!        ├ collective                     the schedules: the copies and reductions of each rank (`parts`: its tensors)
//!        │    ├ kernel                    vector code, chosen at run time
//!        │    └ staged                    schedules for tensors in the private memory of a process
//!        └ point_to_point                 messages between pairs of ranks
//! ```
//!
//! Programs get communicators from a session, or without one from [`connect_threads`]:
//!
//! ```
//! use std::time::Duration;
//! use disco_core::{CommunicatorExt, Reduction, Tensor};
//!
//! let ranks = disco_local::connect_threads(2, Duration::from_secs(5))?;
//! let sums = std::thread::scope(|scope| {
//!     let threads: Vec<_> = ranks.into_iter().map(|mut comm| scope.spawn(move || {
//!         let x = Tensor::from_slice(&[1f32, 2.0], [2])?;
//!         comm.all_reduce_in_place(&x, Reduction::Sum)?;
//!         x.to_vec::<f32>()
//!     })).collect();
//!     threads.into_iter().map(|thread| thread.join().expect("no panic")).collect::<Result<Vec<_>, _>>()
//! })?;
//! assert_eq!(sums, [[2.0, 4.0], [2.0, 4.0]]);
//! # Ok::<(), disco_core::Error>(())
//! ```
//!
//! Start reading at `board/mod.rs` (the layout of the shared memory and the synchronisation) and `active_call/mod.rs`
//! (the rules that keep memory valid while peers access it).

#![cfg_attr(test, allow(clippy::disallowed_methods, reason = "tests compare texts"))]

#[cfg(not(loom))]
mod active_call;
#[cfg(not(loom))]
mod address_space;
#[cfg(not(loom))]
mod agree;
#[cfg(not(loom))]
mod backend;
#[cfg_attr(loom, allow(dead_code, reason = "models use a part of it"))]
mod board;
#[cfg(not(loom))]
mod collective;
#[cfg(not(loom))]
mod communicator;
#[cfg(not(loom))]
mod failure;
#[cfg(not(loom))]
mod group;
#[cfg(not(loom))]
mod identity;
#[cfg(not(loom))]
mod kernel;
#[cfg(not(loom))]
mod machine;
#[cfg(not(loom))]
mod meeting;
#[cfg(not(loom))]
mod parts;
#[cfg(not(loom))]
mod placement;
#[cfg(not(loom))]
mod point_to_point;
#[cfg(not(loom))]
mod processes;
#[cfg(not(loom))]
mod reduction;
#[cfg(not(loom))]
mod report;
#[cfg(not(loom))]
mod seat;
#[cfg(not(loom))]
mod spin_policy;
#[cfg(not(loom))]
mod split;
#[cfg(not(loom))]
mod staged;
mod sync;

#[cfg(not(loom))]
pub use backend::{BACKEND, Local};
#[cfg(not(loom))]
pub use communicator::{Communicator, connect_threads};
#[cfg(not(loom))]
pub use reduction::{Branch, finish, partial, partial_dtype, reduce};

/// The name of the backend.
#[cfg(not(loom))]
pub(crate) const NAME: &str = "local";
