//! The device kind `cuda`.

use disco_core::device_api::{DeviceApi, DeviceEntry};
use disco_core::{Device, DeviceKind, Queue, Result, Unavailable};

use super::driver;
use super::error::check;
use super::stream::Stream;

/// NVIDIA GPUs that the driver shows to this process (`CUDA_VISIBLE_DEVICES`).
#[derive(Clone, Copy, Debug)]
pub struct Cuda;

disco_core::inventory::submit! { DeviceEntry(&Cuda) }

impl DeviceApi for Cuda {
    fn kind(&self) -> DeviceKind {
        DeviceKind::Cuda
    }

    fn count(&self) -> Result<usize, Unavailable> {
        driver::get()?;
        let refused = |error| Unavailable {
            what: "a CUDA device".into(),
            tried: vec![("the CUDA driver".into(), format!("{error}"))],
        };
        let count = check("cuDeviceGetCount", cudarc::driver::result::device::get_count()).map_err(refused)?;
        Ok(usize::try_from(count).unwrap_or_default())
    }

    fn bind(&self, device: Device) -> Result<Box<dyn Queue>> {
        disco_ccl::bind((self.kind(), self.count()?), device, Stream::new)
    }
}

/// What users may want to see of driver and devices.
///
/// # Errors
/// There is no driver, or no device.
pub(crate) fn details() -> Result<disco_ccl::Details, Unavailable> {
    let version = format!("CUDA {}", driver::get()?.version);
    Ok(disco_ccl::details(version, (DeviceKind::Cuda, Cuda.count()?), name))
}

fn name(ordinal: usize) -> Result<String> {
    use cudarc::driver::result::device;
    let device = check("cuDeviceGet", device::get(ordinal as i32))?;
    check("cuDeviceGetName", device::get_name(device))
}
