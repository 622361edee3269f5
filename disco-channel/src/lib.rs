//! Starts the workers of a Disco session and carries commands to them: as threads, as processes of this machine, or on
//! other machines over TCP.
//!
//! Use this crate to start a session without the `disco` facade, or to build lanes of your own from its parts.
//!
//! ```no_run
//! use disco_channel::session;
//! use disco_core::session::Deadlines;
//! use disco_core::{Session, World, WorkerConfig};
//!
//! # async fn example() -> disco_core::Result<()> {
//! let world = World::new(4, 1)?; // four workers in one group
//! let session = session::threads(WorkerConfig::new(world), Deadlines::default())?;
//! session.sync_all().await?; // any executor works
//! session.shutdown().await
//! # }
//! ```
//!
//! | looking for | open |
//! |---|---|
//! | a whole session in one call | [`session`] |
//! | workers that are threads; the broadcast ring that carries their commands | [`threads`], [`ring`] |
//! | workers that are processes; the ring in shared memory | [`processes`], [`shared_ring`] |
//! | workers on other machines; how a node authenticates | [`nodes`], [`handshake`] |
//! | workers of TVM's Disco, and workers for controllers of TVM's Disco | [`tvm`] |
//! | the activity of other programs' sessions | [`programs`] |
//! | the latency between two processors, to judge measurements by | [`placement`] |
//!
//! [`ThreadLane`], [`ProcessLane`] and [`NodeLane`] implement `disco_core::Channel`. Processes and nodes need Linux.

#[cfg(all(target_os = "linux", not(loom)))]
mod engine;
#[cfg(all(target_os = "linux", not(loom)))]
pub mod environment;
#[cfg(all(target_os = "linux", fuzzing))]
pub mod fuzzing;
#[cfg(all(target_os = "linux", not(loom)))]
pub mod handshake;
#[cfg(all(target_os = "linux", not(loom)))]
mod join_timeout;
#[cfg(all(target_os = "linux", not(loom)))]
pub mod nodes;
#[cfg(all(target_os = "linux", not(loom)))]
pub mod noise;
#[cfg(all(target_os = "linux", not(loom)))]
mod open_files;
#[cfg(all(target_os = "linux", not(loom)))]
mod output;
#[cfg(not(loom))]
pub mod placement;
#[cfg(all(target_os = "linux", not(loom)))]
mod process;
#[cfg(all(target_os = "linux", not(loom)))]
pub mod processes;
#[cfg(all(target_os = "linux", not(loom)))]
pub mod programs;
#[cfg(all(target_os = "linux", not(loom)))]
mod random;
#[cfg(all(target_os = "linux", not(loom)))]
mod reactor;
#[cfg(all(target_os = "linux", not(loom)))]
mod remote_lane;
#[cfg(all(target_os = "linux", not(loom)))]
mod remote_store;
mod replies;
pub mod ring;
#[cfg(not(loom))]
pub mod session;
#[cfg(target_os = "linux")]
pub mod shared_ring;
#[cfg(all(target_os = "linux", not(loom)))]
mod subset;
#[cfg(all(target_os = "linux", not(loom)))]
mod terminal;
#[cfg(not(loom))]
pub mod threads;
#[cfg(all(target_os = "linux", not(loom)))]
mod token;
#[cfg(all(target_os = "linux", not(loom)))]
pub mod tvm;

#[cfg(all(target_os = "linux", not(loom)))]
pub use nodes::NodeLane;
#[cfg(all(target_os = "linux", not(loom)))]
pub use processes::{ProcessEndpoint, ProcessLane};
#[cfg(not(loom))]
pub use threads::{ThreadEndpoint, ThreadLane};
