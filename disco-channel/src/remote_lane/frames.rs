//! How frames travel: what both ends of a lane agree on.

/// The largest frame that goes through the ring, in bytes; larger ones take the connections.
pub(crate) const INLINE: usize = 64 << 10;
/// Marks the tag of a record in the ring whose frame is too large for it: the record says which reader gets it over its
/// connection ([`EVERYBODY`]: all do), and has what is left of the frame for the others.
pub(crate) const LARGE: u64 = 1 << 63;
/// No reader, but all.
pub(crate) const EVERYBODY: u64 = u64::MAX;
