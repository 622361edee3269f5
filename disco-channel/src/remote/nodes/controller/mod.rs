//! The controller's end of a lane to nodes.

mod announce;
mod children;
mod hosting;
mod lane;
mod listen;
mod printer;
mod transport;

pub use announce::{Announce, Announcement};
pub use children::NodeProcess;
pub(super) use lane::serve;
pub use lane::{NodeLane, Options};
pub(super) use printer::Sink;
