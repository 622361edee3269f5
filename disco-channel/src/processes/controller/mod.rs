//! The controller's end of a lane to processes.

mod lane;
mod launch;
mod transport;

pub use crate::output::Sink;
pub use lane::{Options, ProcessLane};
pub use launch::Launch;
