//! The I/O of remote lanes: one thread that polls, and connections to which the lane's methods write directly.
//!
//! ```text
//! lane's methods ──▶ Lane { lock: engine, table of connections } ◀── reactor thread: poll, read, decode, upcalls
//!    (frames and signals are written by the calling thread, under the lock)
//! ```
//!
//! Only the reactor thread calls the inbox, the store and processes, and it holds no lock then. A thread of its own asks
//! the inbox for the status of the session (`status`).

mod answers;
mod connection;
mod lane;
pub(crate) mod member;
mod poller;
mod served;
mod service;
mod status;
mod table;
mod transport;
mod waker;

pub(crate) use connection::{Connection, DESCRIPTOR_RETRY_DELAY, Descriptor, Incoming};
pub(crate) use lane::Lane;
pub(crate) use poller::{Poller, poll, poll_one};
pub(crate) use served::Served;
pub(crate) use service::Reactor;
pub(crate) use transport::{Accepted, Transport};
pub(crate) use waker::Waker;
