//! CUDA devices, through cudarc's bindings of the driver.
//!
//! ```text
//! driver    whether there is one that will do: asked before cudarc is, which panics where there is none
//! device    the device kind as the registry has it
//! memory    of one stream: what is dropped is freed when that needs no wait
//! staging   copies from and to the host
//! stream    one device with one stream on it: memory and copies
//! queue     a worker's stream, and marks in it
//! current   which device is current on a thread
//! error     results as errors
//! ```

mod current;
mod device;
mod driver;
mod error;
mod memory;
mod queue;
mod staging;
mod stream;

use std::sync::Arc;

use cudarc::driver::CudaStream;
pub use device::Cuda;
pub(crate) use device::details;
use disco_ccl::Runtime;
use disco_core::tensor::Storage;
use disco_core::{Error, Result};
pub use queue::Queue;

/// The stream of a worker whose queue is on a CUDA device, as cudarc has it: what is launched on it is in order with the
/// worker's collectives. Its context is the device's primary one.
///
/// # Errors
/// The queue is on another kind of device.
pub fn stream(queue: &mut (dyn disco_core::Queue + 'static)) -> Result<Arc<CudaStream>> {
    of(queue).map(|queue| queue.stream().stream().clone())
}

/// What communicators need of it.
pub(crate) fn runtime(queue: &mut (dyn disco_core::Queue + 'static)) -> Result<Arc<dyn Runtime>> {
    of(queue).map(|queue| queue.stream().clone() as _)
}

/// Zeros in memory of its device.
pub(crate) fn clear(queue: &mut (dyn disco_core::Queue + 'static), storage: &Storage) -> Result<()> {
    of(queue)?.stream().clear(storage)
}

fn of<'a>(queue: &'a mut (dyn disco_core::Queue + 'static)) -> Result<&'a mut Queue> {
    let device = queue.device();
    let queue: &mut dyn std::any::Any = queue;
    queue.downcast_mut().ok_or_else(|| Error::invalid(format!("{device} is no CUDA device")))
}
