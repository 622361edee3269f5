//! The controller's end of a lane to processes.

mod lane;
mod launch;
mod output;
mod transport;

pub use lane::{Options, ProcessLane};
pub use launch::Launch;
pub use output::Sink;
