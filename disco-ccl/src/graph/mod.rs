//! Graphs: work of a worker's stream that is captured once and launched many times.
//!
//! ```text
//! functions  the driver's functions
//! capture    what a runtime knows of captures of its stream; what is refused in one
//! replay     a graph, its launches, and its end
//! ```
//!
//! A graph has one owner of its executable form, the slot that [`Graph`] and the communicators of its operations share. A communicator that
//! ends takes the executable out of all slots, since NCCL ends no communicator before its graphs are destroyed; an executable that is
//! being launched is destroyed after that call, and one whose launches are under way after them (`cuGraphExecDestroy` waits for nothing).

mod capture;
mod functions;
mod replay;

pub(crate) use capture::{Captures, Place};
pub use functions::GraphFunctions;
pub use replay::Graph;
pub(crate) use replay::Graphs;
