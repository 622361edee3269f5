//! HIP, AMD's device library, loaded at run time.
//!
//! ```text
//! table     the C functions
//! library   the search for HIP, its version, the texts of its errors
//! device    the device kind `rocm`
//! stream    HIP's functions for one device and one stream
//! peers     HIP's functions for memory that several devices access
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
/// The worker's queue is on a device of another kind; errors of [`Runtime::capture`](disco_ccl::Runtime::capture).
pub fn capture(ctx: &mut WorkerContext, work: impl FnOnce(&mut WorkerContext) -> Result<()>) -> Result<Graph> {
    let runtime = Queue::of(ctx.queue(), DeviceKind::Rocm)?.runtime().clone();
    runtime.capture(|| work(ctx))
}
