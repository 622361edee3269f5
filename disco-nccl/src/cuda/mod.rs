//! CUDA devices, through cudarc's bindings of the driver.
//!
//! ```text
//! driver    the search for the driver and its functions, before the first use of cudarc, which panics without a driver
//! device    the device kind `cuda`
//! stream    the driver's functions for one device and one stream
//! peers     the driver's functions for memory that several devices access
//! pool      the pool from which a program allocates
//! fence     fences between a worker's stream and streams of the program
//! lend      memory of the program, lent to a tensor for one operation
//! current   the current context of a thread
//! error     errors of the driver
//! ```

mod attributes;
mod current;
mod device;
pub(crate) mod driver;
pub(crate) mod error;
mod fence;
mod lend;
mod peers;
mod pool;
mod stream;

use std::any::Any;
use std::sync::Arc;

pub(crate) use attributes::attribute_of;
use cudarc::driver::CudaStream;
pub use device::Cuda;
pub(crate) use device::{details, site};
pub use disco_ccl::Graph;
use disco_ccl::{Queue, Runtime};
use disco_core::{DeviceKind, Error, Result, WorkerContext};
pub use fence::WorkerStream;
pub use pool::{keep_pool_memory, unused_pool_memory};

/// The CUDA stream of a worker's queue, as a stream of cudarc. Work that is launched on it is ordered with the worker's
/// collectives. Its context is the device's primary context. A program that computes on a stream of its own orders the
/// two streams by a [`WorkerStream`].
///
/// # Errors
/// The queue is on a device of another kind.
pub fn stream(queue: &mut (dyn disco_core::Queue + 'static)) -> Result<Arc<CudaStream>> {
    stream_of(Queue::of(queue, DeviceKind::Cuda)?.runtime())
}

fn stream_of(runtime: &Runtime) -> Result<Arc<CudaStream>> {
    let driver: &dyn Any = runtime.driver();
    let stream = driver.downcast_ref::<stream::Stream>().map(|stream| stream.stream().clone());
    stream.ok_or_else(|| Error::invalid(format!("the stream on {} was not created with cudarc", runtime.device())))
}

/// Captures the work that `work` gives to the worker's stream, as a graph that can be launched many times.
/// [`Runtime::capture`](disco_ccl::Runtime::capture) lists the work that can be captured; [`Graph`] describes launches
/// and the end of a graph.
///
/// ```no_run
/// use disco_core::{CommunicatorExt as _, DType, Reduction, Result, WorkerContext};
///
/// /// Sums a tensor over all workers a hundred times; each sum is one call of the driver.
/// fn sums(ctx: &mut WorkerContext) -> Result<()> {
///     let gradient = ctx.empty(DType::F32, [1 << 20])?;
///     let graph = disco_nccl::cuda::capture(ctx, |ctx| ctx.comm()?.all_reduce_in_place(&gradient, Reduction::Sum))?;
///     for _ in 0..100 {
///         // … launch work on the stream that fills the tensor …
///         graph.launch()?;
///     }
///     ctx.comm()?.synchronize()
/// }
/// ```
///
/// # Errors
/// The worker's queue is on a device of another kind; errors of [`Runtime::capture`](disco_ccl::Runtime::capture).
pub fn capture(ctx: &mut WorkerContext, work: impl FnOnce(&mut WorkerContext) -> Result<()>) -> Result<Graph> {
    let runtime = Queue::of(ctx.queue(), DeviceKind::Cuda)?.runtime().clone();
    runtime.capture(|| work(ctx))
}
