//! Numbers, strings and the head of a packet as bytes: what the [wire format](crate::wire) is made of.

mod error;
mod reader;
mod writer;

pub use error::WireError;
pub use reader::Reader;
pub use writer::Writer;

/// Largest packet that is read or written, in bytes. A connection takes less: its own limit follows from
/// `WorkerConfig::value_limit`.
pub const PACKET_LIMIT: u64 = 1 << 36;

/// Bytes of a value up to which it lies in the packet everywhere, and in `DebugSetRegister` as a debug object of TVM. A larger
/// tensor goes by shared memory if both ends are processes of one machine.
pub const INLINE_LIMIT: usize = 64 << 10;

/// The one packet code of Disco's lanes.
pub(crate) const CODE_RETURN: i32 = 4;
