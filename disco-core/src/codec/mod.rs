//! Numbers, strings and the head of a packet as bytes: what the [wire format](crate::wire) is made of.

mod error;
mod reader;
mod writer;

pub use error::WireError;
pub use reader::Reader;
pub use writer::Writer;

/// Largest packet that is read or written, in bytes.
pub const PACKET_LIMIT: u64 = 1 << 28;

/// Largest tensor that travels inside a packet, in bytes; larger ones go over the data plane.
pub const INLINE_LIMIT: usize = 64 << 10;

/// The one packet code of Disco's lanes.
pub(crate) const CODE_RETURN: i32 = 4;
