//! The controller's end of a lane to processes.

mod lane;
mod launch;
mod spare;
mod spares;
mod transport;

pub use crate::remote::output::Sink;
pub use lane::{Options, ProcessLane};
pub use launch::{Launch, this_program};
pub use spares::Spares;
