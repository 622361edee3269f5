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
use disco_ccl::Queue;
use disco_core::{DeviceKind, Error, Result};

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
