//! Shared memory for the processes of one machine.

mod arena;
mod frozen;
#[cfg_attr(not(target_os = "linux"), path = "unsupported.rs")]
mod os;
mod segment;
mod snapshot;

pub use arena::Arena;
pub use frozen::{Filling, Frozen, FrozenBytes};
pub use segment::Segment;
pub use snapshot::{MappedSnapshot, ReusedMemory, Snapshot};
