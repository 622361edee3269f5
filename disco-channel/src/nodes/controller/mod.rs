//! The controller's end.

mod announce;
mod batch;
mod children;
mod crew;
mod door;
mod lane;
mod peer;
mod printer;
mod refused;
mod roster;
mod service;

pub use announce::{Announce, Announcement};
pub use children::NodeProcess;
pub use lane::{NodeLane, Options};
