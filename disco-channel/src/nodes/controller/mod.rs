//! The controller's end.

mod batch;
mod door;
mod lane;
mod peer;
mod printer;
mod roster;
mod service;

pub use lane::{Announce, Announcement, NodeLane, Options};
