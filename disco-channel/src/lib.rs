//! Lanes between a controller and its workers, and how workers behind them are started.
//!
//! A [`ThreadLane`] starts workers as [`threads`] of this process; commands reach them through the broadcast [`ring`].

pub mod ring;
#[cfg(not(loom))]
pub mod threads;

#[cfg(not(loom))]
pub use threads::{ThreadEndpoint, ThreadLane};
