//! The controller's end.

mod crew;
mod door;
mod lane;
mod launch;
mod output;
mod peer;
mod roster;
mod service;

pub use lane::{Options, ProcessLane};
pub use launch::Launch;
pub use output::Sink;
