//! What carries the engine of a lane: one thread that polls, and connections to which the lane's methods write as well.
//!
//! ```text
//! lane's methods ──▶ Lane { lock: engine, table of connections } ◀── reactor thread: poll, read, decode, upcalls
//!    (frames and signals are written by the calling thread, under the lock)
//! ```
//!
//! The inbox, the store and processes are called by the reactor thread alone, without the lock.

mod lane;
mod served;
mod service;
mod table;

pub(crate) use lane::Lane;
pub(crate) use served::Served;
pub(crate) use service::{Accepted, Reactor, Transport};
