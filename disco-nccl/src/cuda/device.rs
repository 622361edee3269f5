//! The device kind `cuda`.

#![allow(unsafe_code)]

use cudarc::driver::result::device;
use disco_ccl::p2p::Site;
use disco_core::device_api::{DeviceApi, DeviceEntry};
use disco_core::{Device, DeviceKind, Queue, Result, Unavailable};

use super::attributes::bus_id;
use super::driver;
use super::error::check;
use super::stream::Stream;

/// NVIDIA GPUs that the driver shows to this process (`CUDA_VISIBLE_DEVICES`).
#[allow(clippy::exhaustive_structs, reason = "a unit")]
#[derive(Clone, Copy, Debug)]
pub struct Cuda;

disco_core::inventory::submit! { DeviceEntry(&Cuda) }

impl DeviceApi for Cuda {
    fn kind(&self) -> DeviceKind {
        DeviceKind::Cuda
    }

    fn count(&self) -> Result<usize, Unavailable> {
        driver::get()?;
        let refused = |error| Unavailable::new("a CUDA device").with_tried("the CUDA driver", format!("{error}"));
        let count = check("cuDeviceGetCount", device::get_count()).map_err(refused)?;
        Ok(usize::try_from(count).unwrap_or_default())
    }

    fn bind(&self, device: Device) -> Result<Box<dyn Queue>> {
        disco_ccl::bind((self.kind(), self.count()?), device, Stream::new)
    }
}

/// The version of CUDA and the names of the devices, for reports to users.
///
/// # Errors
/// There is no usable driver, or it can't count its devices.
pub(crate) fn details() -> Result<disco_ccl::Details, Unavailable> {
    let version = format!("CUDA {}", driver::get()?.version);
    Ok(disco_ccl::details(version, (DeviceKind::Cuda, Cuda.count()?), name))
}

fn name(ordinal: usize) -> Result<String> {
    let device = check("cuDeviceGet", device::get(ordinal as i32))?;
    check("cuDeviceGetName", device::get_name(device))
}

/// The name and the PCI bus id of a device. The caller has checked that there is a driver.
///
/// # Errors
/// Errors of the driver.
pub(crate) fn site(ordinal: usize) -> Result<Site> {
    let device = Device::new(DeviceKind::Cuda, ordinal as i32);
    Ok(Site { device, name: name(ordinal)?, bus_id: bus_id(ordinal)? })
}
