//! AMD's device library, found at run time.
//!
//! ```text
//! table     its functions
//! library   the search, its versions, errors in its words
//! device    the device kind as the registry has it
//! stream    its calls, on one device with one stream on it
//! peers     those for memory that several devices have
//! ```

mod device;
mod library;
mod peers;
mod stream;
mod table;

pub use device::Hip;
pub(crate) use device::details;
use disco_ccl::{Graph, Queue};
use disco_core::{DeviceKind, Result, WorkerContext};

/// Captures the work that `work` gives to the worker's stream, as a graph that can be launched many times.
/// [`Runtime::capture`](disco_ccl::Runtime::capture) lists the work that can be captured; [`Graph`] describes launches
/// and the end of a graph.
///
/// # Errors
/// The worker's queue is on another kind of device; as [`Runtime::capture`](disco_ccl::Runtime::capture).
pub fn capture(ctx: &mut WorkerContext, work: impl FnOnce(&mut WorkerContext) -> Result<()>) -> Result<Graph> {
    let runtime = Queue::of(ctx.queue(), DeviceKind::Rocm)?.runtime().clone();
    runtime.capture(|| work(ctx))
}
