//! Graphs: work of a worker's stream that is captured once and launched many times.
//!
//! ```text
//! functions  the driver's functions
//! capture    captures of a runtime's stream, and the operations that a capture refuses
//! replay     a graph, its launches, and its end
//! ```
//!
//! The executable form of a graph is in a slot that [`Graph`] and the communicators of its operations share. A communicator that ends takes
//! the executable out of each of its slots, since NCCL ends no communicator before its graphs are destroyed. A call that launches an
//! executable holds a reference: the last reference destroys the executable. `cuGraphExecDestroy` does not wait, and the driver frees an
//! executable after its running launches.

mod capture;
mod functions;
mod replay;

pub(crate) use capture::{CaptureCheck, Captures};
pub use functions::GraphFunctions;
pub use replay::Graph;
pub(crate) use replay::Graphs;
