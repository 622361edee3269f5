//! What the driver tells about a device.

#![allow(unsafe_code)]

use cudarc::driver::result;
use cudarc::driver::sys::CUdevice_attribute::{
    self, CU_DEVICE_ATTRIBUTE_PCI_BUS_ID, CU_DEVICE_ATTRIBUTE_PCI_DEVICE_ID, CU_DEVICE_ATTRIBUTE_PCI_DOMAIN_ID,
};
use cudarc::driver::sys::{self, CUresult};
use disco_ccl::p2p::BusId;
use disco_core::Result;

use super::driver;
use super::error::check;

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
    let handle = device_of(ordinal as i32)?;
    // SAFETY: the driver has just given the handle.
    check("cuDeviceGetAttribute", unsafe { result::device::get_attribute(handle, attribute) })
}

/// Ordinals of the other devices that can access a device's memory.
pub(super) fn accessors(ordinal: i32) -> Vec<i32> {
    let can_access = |peer: &i32| {
        let (Ok(own), Ok(peer)) = (device_of(ordinal), device_of(*peer)) else { return false };
        let mut can = 0;
        // SAFETY: the driver has just returned both devices, and `can` is writable.
        let queried = unsafe { sys::cuDeviceCanAccessPeer(&mut can, peer, own) };
        queried == CUresult::CUDA_SUCCESS && can != 0
    };
    let count = result::device::get_count().unwrap_or(0);
    match driver::require(&[c"cuDeviceCanAccessPeer"]) {
        Ok(()) => (0..count).filter(|peer| *peer != ordinal).filter(can_access).collect(),
        Err(_) => Vec::new(),
    }
}

pub(super) fn device_of(ordinal: i32) -> Result<sys::CUdevice> {
    check("cuDeviceGet", result::device::get(ordinal))
}
