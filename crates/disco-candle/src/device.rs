//! The device of a worker's tensors.

use candle_core::{DType, Device};
use disco_core::{DeviceKind, Error, Result, WorkerContext};

#[cfg(feature = "cuda")]
use crate::cuda;

/// The device that `init_ccl` gave to this worker, as a device of candle for tensors of type `dtype`.
///
/// A CUDA device has a stream of its own, and candle's memory comes from the device's pool, which keeps freed memory.
/// Candle does not track the uses of its memory by events: the stream orders them, and the collectives of a
/// [`Comm`](crate::Comm) are ordered with it. So use the tensors with this device only.
///
/// ```
/// use candle_core::{DType, Tensor};
/// use disco_core::WorkerContext;
///
/// /// Worker function: a tensor where the worker's collectives run.
/// fn ones(ctx: &mut WorkerContext) -> Result<f32, candle_core::Error> {
///     let device = disco_candle::device(ctx, DType::F32).map_err(disco_candle::to_candle)?;
///     Tensor::ones(4, DType::F32, &device)?.sum_all()?.to_scalar()
/// }
/// # disco_core::register_function!("doc.ones", ones);
/// ```
///
/// # Errors
/// The program was built without the feature `cuda`, or candle has no device of this kind; the device can't compute with
/// `dtype`; errors of the driver.
pub fn device(ctx: &WorkerContext, dtype: DType) -> Result<Device> {
    let device = ctx.device();
    match device.kind {
        DeviceKind::Cpu => Ok(Device::Cpu),
        #[cfg(feature = "cuda")]
        DeviceKind::Cuda => cuda::device(device, dtype),
        #[cfg(not(feature = "cuda"))]
        DeviceKind::Cuda => {
            _ = dtype;
            let help = "build the program with the feature `cuda` of disco-candle, or choose a backend of the host";
            Err(Error::invalid(format!("this program has no kernels of candle for {device}: {help}")))
        }
        _ => Err(Error::invalid(format!("candle computes on the CPU and on CUDA devices, not on {device}"))),
    }
}
