//! A connection that streams packets: a Unix socket to a process, which also carries descriptors, or TCP to a node.
//!
//! Sending writes as much as the socket takes; the polling thread writes the rest. Large packets go in parts, and small
//! packets overtake frames and parts, so an abort, an answer or a heartbeat waits for at most one part and the bytes in
//! the socket. A connection to a node may be [encrypted](disco_engine::noise).

mod incoming;
mod outbox;
mod outgoing;
mod parcel;
mod sealed;
mod tcp_info;

#[cfg(test)]
mod tests;

pub(crate) use incoming::Incoming;
pub(crate) use outgoing::{Connection, DESCRIPTOR_RETRY_DELAY};
pub(crate) use parcel::Descriptor;

/// Bytes of a large packet in one part.
const PART_BYTES: usize = 60 << 10;
