//! The built-in host data plane of Disco: ranks are threads of one process, or processes of one machine that share memory,
//! and peers read each other's tensors in place.
//!
//! It needs nothing installed, has every [`Op`](disco_core::Op) on every dtype, and is the oracle that other backends are
//! compared with: a result is the same bits on all ranks and in all runs.
//!
//! ```text
//! Communicator ── Arc ─▶ Group      one for all ranks: who is there, what broke it; its Board is what ranks show each other
//!   └ enqueue ─▶ Turn ─▶ Memory     one rank inside one call; the right to touch published memory (`turn` draws this)
//!        ├ collective               which rank copies or reduces what, and when (`parts` is what a rank puts in and gets)
//!        │    └ kernel              vector code, chosen at run time
//!        │    └ staged              … where tensors are in a process's private memory
//!        └ point_to_point           letters from rank to rank
//! ```
//!
//! Programs get communicators from a session, or bare:
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
mod meeting;
#[cfg(not(loom))]
mod parts;
#[cfg(not(loom))]
mod point_to_point;
#[cfg(not(loom))]
mod processes;
#[cfg(not(loom))]
mod report;
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

/// The name of the backend.
#[cfg(not(loom))]
pub(crate) const NAME: &str = "local";
