//! A connection that streams packets: Unix sockets to processes, over which descriptors go along, and TCP to nodes.
//!
//! What is sent goes at once as far as the socket takes it, and the rest whenever that is polled. Small packets go ahead of
//! frames and of large ones, which travel in parts, so that an abort, an answer or a heartbeat waits for at most one part and
//! for what is in the socket.

mod incoming;
mod outgoing;
mod vigil;
mod waker;

#[cfg(test)]
mod tests;

pub(crate) use incoming::{Incoming, PACKET};
pub(crate) use outgoing::Connection;
pub(crate) use vigil::Vigil;
pub(crate) use waker::Waker;

/// The largest packet that goes whole.
pub(crate) const CHUNK: usize = 64 << 10;
/// What a part brings of a larger one.
const PART: usize = 60 << 10;
