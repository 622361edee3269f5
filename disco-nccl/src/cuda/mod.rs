//! CUDA devices, through cudarc's bindings of the driver.
//!
//! ```text
//! driver    whether there is one that will do: asked before cudarc is, which panics where there is none
//! device    the device kind as the registry has it
//! stream    the driver's calls, on one device with one stream on it
//! peers     those for memory that several devices have
//! current   which device is current on a thread
//! error     results as errors
//! ```

mod current;
mod device;
pub(crate) mod driver;
pub(crate) mod error;
mod peers;
mod stream;

use std::any::Any;
use std::sync::Arc;

use cudarc::driver::CudaStream;
pub use device::Cuda;
pub(crate) use device::{attribute_of, details, site};
use disco_ccl::{Graph, Queue};
use disco_core::{DeviceKind, Error, Result, WorkerContext};

/// The stream of a worker whose queue is on a CUDA device, as cudarc has it: what is launched on it is in order with the
/// worker's collectives. Its context is the device's primary one.
///
/// # Errors
/// The queue is on another kind of device.
pub fn stream(queue: &mut (dyn disco_core::Queue + 'static)) -> Result<Arc<CudaStream>> {
    let driver: &dyn Any = Queue::of(queue, DeviceKind::Cuda)?.runtime().driver();
    let stream = driver.downcast_ref::<stream::Stream>().map(|stream| stream.stream().clone());
    stream.ok_or_else(|| Error::invalid("the stream is not one of cudarc's"))
}

/// Captures the work that `work` gives to the worker's stream, as a graph that can be launched many times.
/// [`Runtime::capture`](disco_ccl::Runtime::capture) lists the work that can be captured; [`Graph`] describes launches and the end of a graph.
///
/// ```no_run
/// use disco_core::{CommunicatorExt as _, DType, Reduction, Result, WorkerContext};
///
/// /// Sums a tensor over all workers a hundred times, with one call of the driver each.
/// fn sums(ctx: &mut WorkerContext) -> Result<()> {
///     let gradient = ctx.empty(DType::F32, [1 << 20])?;
///     let graph = disco_nccl::cuda::capture(ctx, |ctx| ctx.comm()?.all_reduce_in_place(&gradient, Reduction::Sum))?;
///     for _ in 0..100 {
///         // … work on the stream that fills the tensor …
///         graph.launch()?;
///     }
///     ctx.comm()?.synchronize()
/// }
/// ```
///
/// # Errors
/// The worker's queue is on another kind of device; as [`Runtime::capture`](disco_ccl::Runtime::capture).
pub fn capture(ctx: &mut WorkerContext, work: impl FnOnce(&mut WorkerContext) -> Result<()>) -> Result<Graph> {
    let runtime = Queue::of(ctx.queue(), DeviceKind::Cuda)?.runtime().clone();
    runtime.capture(|| work(ctx))
}
