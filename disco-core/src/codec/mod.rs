//! Encoding of numbers, strings and packet headers: the basis of the [wire format](crate::wire).

mod error;
mod hash;
mod reader;
mod writer;

pub use error::WireError;
pub(crate) use hash::fnv1a;
pub use reader::Reader;
pub use writer::Writer;

/// Largest packet that can be read or written, in bytes. A connection has a lower limit, which follows from
/// `WorkerConfig::value_limit`.
pub const PACKET_LIMIT: u64 = 1 << 36;

/// Largest value, in bytes, that always lies inside the packet, in `DebugSetRegister` as a debug object of TVM. A
/// larger tensor goes through shared memory if both ends are processes of one machine.
pub const INLINE_LIMIT: usize = 64 << 10;

/// The packet code of all packets on Disco's lanes.
pub(crate) const CODE_RETURN: i32 = 4;
