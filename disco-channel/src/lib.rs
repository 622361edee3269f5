//! Lanes between a controller and its workers, and how workers behind them are started.
//!
//! A [`ThreadLane`] starts workers as [`threads`] of this process; commands reach them through the broadcast [`ring`].
//! [`placement`] tells how far apart threads run.

#[cfg(not(loom))]
mod exits;
#[cfg(not(loom))]
pub mod placement;
#[cfg(not(loom))]
pub mod processes;
pub mod ring;
pub mod shared_ring;
#[cfg(not(loom))]
pub mod threads;

#[cfg(not(loom))]
pub use threads::{ThreadEndpoint, ThreadLane};
