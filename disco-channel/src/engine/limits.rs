//! Sizes that both ends of a connection agree on.

use disco_core::wire::PACKET_LIMIT;

/// The largest packet that an end which has proved what it is may send, in parts.
pub(crate) const PACKET: usize = PACKET_LIMIT as usize;
/// The largest packet that goes whole.
pub(crate) const CHUNK: usize = 64 << 10;
