//! A connection that streams packets: Unix sockets to processes, over which descriptors go along, and TCP to nodes.
//!
//! What is sent goes at once as far as the socket takes it, and the rest whenever that is polled. Small packets go ahead of
//! frames and of large ones, which travel in parts, so that an abort, an answer or a heartbeat waits for at most one part and
//! for what is in the socket.

mod incoming;
mod outbox;
mod outgoing;

#[cfg(test)]
mod tests;

pub(crate) use incoming::Incoming;
pub(crate) use outbox::Descriptor;
pub(crate) use outgoing::{Connection, DESCRIPTOR_PAUSE};

/// What a part brings of a larger one.
const PART: usize = 60 << 10;
