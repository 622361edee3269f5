//! Sizes that both ends of a connection agree on.

use disco_core::wire::PACKET_LIMIT;

/// What a packet may have besides values, in bytes, and the largest packet before the limit of values is known.
pub(crate) const PACKET: usize = 256 << 20;
/// The largest packet that goes whole.
pub(crate) const CHUNK: usize = 64 << 10;

/// The largest packet, in bytes, that an admitted peer may send in parts, for values of at most `value_limit` bytes.
pub(crate) fn packet_limit(value_limit: usize) -> usize {
    PACKET.saturating_add(value_limit).min(PACKET_LIMIT as usize)
}
