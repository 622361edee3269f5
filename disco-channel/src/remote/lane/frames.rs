//! Constants of the ring's records, shared by both ends of a lane.

/// The largest frame that goes through the ring, in bytes. Larger frames go over the connections.
pub(crate) const MAX_INLINE_BYTES: usize = 64 << 10;
/// Flag in the tag of a ring record that stands for a large frame. The record holds the index of the reader that gets
/// the frame over its connection (or [`ALL_READERS`]), then a no-op frame with the freed ids for the other readers.
pub(crate) const LARGE_FLAG: u64 = 1 << 63;
/// In place of a reader's index: all readers get the frame over their connections.
pub(crate) const ALL_READERS: u64 = u64::MAX;
