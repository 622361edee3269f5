//! The controller's end of a lane to remote workers; lanes to processes and to nodes share it.

pub(crate) mod frames;
mod lane;
mod ring;

pub(crate) use lane::{Peers, RemoteLane, Running};
pub(crate) use ring::{CAPACITY_WORDS, Ring, activity, segment_words};
