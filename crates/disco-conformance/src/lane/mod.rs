//! The suite of a lane: the contracts of [`Channel`](disco_core::Channel), [`Inbox`](disco_core::Inbox),
//! [`Endpoint`](disco_core::Endpoint) and [`Link`](disco_core::Link).
//!
//! The behaviour of the workers is a [`Role`] with a name, so that a lane to processes can start a worker with the name
//! of its role.

mod cases;
mod fixture;
mod frames;
mod harness;
mod recorded;
mod role;
mod suite;

pub use harness::Harness;
pub use role::{Role, play};
pub use suite::Suite;
