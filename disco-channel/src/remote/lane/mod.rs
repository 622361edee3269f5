//! The controller's end of a lane to remote workers; lanes to processes and to nodes share it.

mod channel;
pub(crate) mod frames;
mod ring;

pub(crate) use channel::{Peers, RemoteLane, Running};
pub(crate) use ring::{CAPACITY_WORDS, Ring, activity, segment_words};
