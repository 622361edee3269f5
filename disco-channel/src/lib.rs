//! Lanes between a controller and its workers, and how workers behind them are started.
//!
//! A [`ThreadLane`] starts workers as [`threads`] of this process; commands reach them through the broadcast [`ring`]. A
//! [`ProcessLane`] starts them as [`processes`] of this machine; commands reach them as bytes through a [`shared_ring`].
//! [`placement`] tells how far apart threads run.

#[cfg(not(loom))]
mod exits;
#[cfg(not(loom))]
pub mod placement;
#[cfg(all(target_os = "linux", not(loom)))]
pub mod processes;
pub mod ring;
#[cfg(target_os = "linux")]
pub mod shared_ring;
#[cfg(not(loom))]
pub mod threads;

#[cfg(all(target_os = "linux", not(loom)))]
pub use processes::{ProcessEndpoint, ProcessLane};
#[cfg(not(loom))]
pub use threads::{ThreadEndpoint, ThreadLane};
