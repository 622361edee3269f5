//! The lane to remote workers, as a session has it: what lanes to worker processes and to nodes share.

pub(crate) mod frames;
mod lane;
mod ring;

pub(crate) use lane::{Peers, RemoteLane, Running};
pub(crate) use ring::{CAPACITY, Ring};
