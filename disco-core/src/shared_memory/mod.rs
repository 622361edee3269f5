//! Memory that processes of one machine share.

mod arena;
mod segment;

pub use arena::Arena;
pub use segment::Segment;
