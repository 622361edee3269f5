//! One device with one stream on it.
//!
//! ```text
//! stream        the stream, and the memory of tensors
//! captures      the state of captures of the stream
//! capture       a capture of the stream
//! graph         a graph that was captured, its launches, and its end
//! graphs        the graphs of a communicator
//! launches      launches of operations, measured for timelines
//! device_times  times of operations on the device
//! device_clock  the clock of events, aligned with the host's
//! teardown      threads for work that may wait for the device or for peers
//! ```

mod capture;
mod captures;
mod device_clock;
mod device_times;
mod graph;
mod graphs;
mod launches;
mod stream;
mod teardown;

pub use graph::Graph;
pub(crate) use graphs::{Graphs, Kept};
pub use stream::Runtime;
pub(crate) use stream::{Hold, WorkMonitor};
pub(crate) use teardown::{Teardown, when_idle};
