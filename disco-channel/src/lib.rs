//! Lanes between a controller and its workers, and how workers behind them are started.
//!
//! A [`ThreadLane`] starts workers as [`threads`] of this process; commands reach them through the broadcast [`ring`]. A
//! [`ProcessLane`] starts them as [`processes`] of this machine; commands reach them as bytes through a [`shared_ring`]. A
//! [`NodeLane`] takes other [`nodes`] in, which have lanes of their own to workers there.
//! [`session`] makes a session of them in one call. [`placement`] tells how far apart threads run.

#[cfg(all(target_os = "linux", not(loom)))]
mod ending;
#[cfg(all(target_os = "linux", not(loom)))]
mod engine;
#[cfg(all(target_os = "linux", not(loom)))]
pub mod environment;
#[cfg(all(target_os = "linux", fuzzing))]
pub mod fuzzing;
#[cfg(all(target_os = "linux", not(loom)))]
pub mod handshake;
#[cfg(all(target_os = "linux", not(loom)))]
pub mod nodes;
#[cfg(not(loom))]
pub mod placement;
#[cfg(all(target_os = "linux", not(loom)))]
mod process;
#[cfg(all(target_os = "linux", not(loom)))]
pub mod processes;
#[cfg(all(target_os = "linux", not(loom)))]
mod random;
#[cfg(all(target_os = "linux", not(loom)))]
mod reactor;
#[cfg(all(target_os = "linux", not(loom)))]
mod remote_lane;
#[cfg(all(target_os = "linux", not(loom)))]
mod remote_store;
pub mod ring;
#[cfg(not(loom))]
pub mod session;
#[cfg(target_os = "linux")]
pub mod shared_ring;
#[cfg(all(target_os = "linux", not(loom)))]
mod terminal;
#[cfg(not(loom))]
pub mod threads;
#[cfg(all(target_os = "linux", not(loom)))]
mod token;

#[cfg(all(target_os = "linux", not(loom)))]
pub use nodes::NodeLane;
#[cfg(all(target_os = "linux", not(loom)))]
pub use processes::{ProcessEndpoint, ProcessLane};
#[cfg(not(loom))]
pub use threads::{ThreadEndpoint, ThreadLane};
