//! Packet sizes that both ends of a connection agree on.

use disco_core::wire::PACKET_LIMIT;

/// The largest packet before the limit of values is known, and the share of a packet besides its values, in bytes.
pub const MAX_PACKET_BYTES: usize = 256 << 20;
/// The largest packet that is sent whole; larger ones are sent in parts.
pub const CHUNK_BYTES: usize = 64 << 10;

/// Largest number of records of one worker in one message: 128 MiB, which every connection takes.
pub const MAX_SENT_RECORDS: usize = 1 << 21;

/// The largest packet, in bytes, that an admitted peer may send, for values of at most `value_limit` bytes.
pub fn packet_limit(value_limit: usize) -> usize {
    MAX_PACKET_BYTES.saturating_add(value_limit).min(PACKET_LIMIT as usize)
}
