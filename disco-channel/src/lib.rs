//! Starts the workers of a Disco session and carries commands to them: as threads, as processes of this machine, or on
//! other machines over TCP.
//!
//! Use this crate to start a session without the `disco` facade, or to build lanes of your own from its parts.
//!
//! ```no_run
//! use disco_channel::session;
//! use disco_core::session::Deadlines;
//! use disco_core::{World, WorkerConfig};
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
//! | workers on other machines | [`nodes`] |
//! | the protocol of lanes to processes and nodes, without I/O; how a node authenticates | [`disco_engine`] |
//! | workers of TVM's Disco, and workers for controllers of TVM's Disco | `tvm` (feature `tvm`) |
//! | the activity of other programs' sessions | [`programs`] |
//! | the latency between two processors, to judge measurements by | [`placement`] |
//!
//! [`ThreadLane`], [`ProcessLane`] and [`NodeLane`] implement `disco_core::Channel`. Processes and nodes need Linux.
//!
//! # Invariants
//! - A remote lane is an engine of `disco-engine` under one lock. The calling thread writes frames and signals itself. The
//!   reactor thread makes all other calls of the inbox, the store and processes, in order and without the lock, except
//!   that a thread of its own collects and encodes the status for clients that ask; a polling caller delivers replies
//!   itself.
//! - A dropped session aborts running operations, and gives up workers that have not left after 3 s; each lane with
//!   such workers adds up to 2 s.
//! - A node is a bridge between a TCP connection and a lane of its own to the workers there. It is no session: the
//!   controller has the store and orders the commands.
//! - Over connections (to nodes, and to processes without shared memory), a call without a reply may wait for later
//!   calls, so that one write sends several: 50 µs times the number of peers, and at least 100 µs. A command with a
//!   reply is sent at once, with the calls that wait. Replies, aborts, answers of the store and heartbeats are sent
//!   before frames, and large packets are sent in parts of 60 KiB.
//! - Lanes to threads and to processes wake only the workers that a command concerns: a sync of one worker leaves the
//!   others asleep, for at most 200 ms. In a thread lane, this time starts when the woken worker goes to sleep, and
//!   that worker then wakes the others.
//! - The service thread of an idle worker process or node wakes once in a heartbeat's interval: it polls progress
//!   rarely after 1 s without a change, until the worker runs or a frame comes. No thread spins after a heartbeat.
//! - A thread that waits for replies first polls its lanes (`Polled::poll`), and so does a node's thread. Workers of
//!   this machine leave replies without a value for it in words of their own (`replies.rs`), so a sync wakes no
//!   thread but the worker's, and a worker thread does not touch the table of replies. A session's workers do so
//!   while no caller sleeps, or another one polls meanwhile (`disco-core/src/stream/sleepers.rs`); a node's while its
//!   thread polls. Replies that were left are delivered before the worker is reported as left or lost.

#![cfg_attr(test, allow(clippy::disallowed_methods, reason = "tests compare texts"))]

#[cfg(not(loom))]
pub mod placement;
#[cfg(all(target_os = "linux", not(loom)))]
mod remote;
mod replies;
pub mod ring;
#[cfg(not(loom))]
pub mod session;
#[cfg(target_os = "linux")]
pub mod shared_ring;
#[cfg(not(loom))]
pub mod threads;

#[cfg(all(target_os = "linux", fuzzing))]
pub use remote::fuzzing;
#[cfg(all(target_os = "linux", feature = "tvm", not(loom)))]
pub use remote::tvm;
#[cfg(all(target_os = "linux", not(loom)))]
pub use remote::{NodeLane, ProcessEndpoint, ProcessLane, environment, nodes, processes, programs, terminal};
#[cfg(not(loom))]
pub use threads::{ThreadEndpoint, ThreadLane};
