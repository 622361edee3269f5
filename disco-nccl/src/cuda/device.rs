//! The device kind `cuda`.

#![allow(unsafe_code)]

use cudarc::driver::result::device;
use cudarc::driver::sys::CUdevice_attribute::{
    self, CU_DEVICE_ATTRIBUTE_PCI_BUS_ID, CU_DEVICE_ATTRIBUTE_PCI_DEVICE_ID, CU_DEVICE_ATTRIBUTE_PCI_DOMAIN_ID,
};
use disco_ccl::p2p::{BusId, Site};
use disco_core::device_api::{DeviceApi, DeviceEntry};
use disco_core::{Device, DeviceKind, Queue, Result, Unavailable};

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

/// The PCI bus id of a device.
pub(super) fn bus_id(ordinal: usize) -> Result<BusId> {
    let number = |attribute| attribute_of(ordinal, attribute).map(i32::cast_unsigned);
    Ok(BusId {
        domain: number(CU_DEVICE_ATTRIBUTE_PCI_DOMAIN_ID)?,
        bus: number(CU_DEVICE_ATTRIBUTE_PCI_BUS_ID)?,
        device: number(CU_DEVICE_ATTRIBUTE_PCI_DEVICE_ID)?,
    })
}

/// An attribute of a device (`cuDeviceGetAttribute`).
pub(crate) fn attribute_of(ordinal: usize, attribute: CUdevice_attribute) -> Result<i32> {
    let handle = check("cuDeviceGet", device::get(ordinal as i32))?;
    // SAFETY: the driver has just given the handle.
    check("cuDeviceGetAttribute", unsafe { device::get_attribute(handle, attribute) })
}
