//! One device with one stream on it.
//!
//! ```text
//! stream    the stream, and the memory of tensors
//! capture   captures of the stream
//! graph     a graph that was captured, its launches, and its end
//! teardown  threads for work that may wait for the device or for peers
//! ```

mod capture;
mod graph;
mod stream;
mod teardown;

pub(crate) use capture::Kept;
pub use graph::Graph;
pub(crate) use graph::Graphs;
pub use stream::Runtime;
pub(crate) use stream::{Hold, WorkMonitor};
pub(crate) use teardown::{Teardown, when_idle};
