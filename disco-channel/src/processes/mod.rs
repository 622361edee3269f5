//! Workers that are processes of this machine.

mod commands;
mod connection;
mod door;
mod endpoint;
mod invitation;
mod lane;
mod launch;
mod link;
mod output;
mod peer;
mod questions;
mod roster;
mod service;
mod waker;
mod worker;

pub use endpoint::ProcessEndpoint;
pub use invitation::Invitation;
pub use lane::{Options, ProcessLane};
pub use launch::Launch;
pub use worker::serve;
