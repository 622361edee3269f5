//! Memory that processes of one machine share.

mod arena;
#[cfg_attr(not(target_os = "linux"), path = "elsewhere.rs")]
mod os;
mod segment;
mod snapshot;

pub use arena::Arena;
pub use segment::Segment;
pub use snapshot::{MappedSnapshot, Snapshot};
