//! States and remote ends of links.

#![allow(unsafe_code, reason = "C functions")]

use std::array;
use std::ffi::{c_char, c_uint};

use super::write_output;
use crate::cuda::identity;
use crate::nvml::abi::{Code, Device, DeviceType, EnableState, PciInfo};
use crate::nvml::library;
use crate::nvml::machine::End;

/// `nvmlReturn_t nvmlDeviceGetNvLinkState(nvmlDevice_t device, unsigned int link, nvmlEnableState_t *isActive)`
#[unsafe(no_mangle)]
pub extern "C" fn nvmlDeviceGetNvLinkState(device: Device, link: c_uint, is_active: Option<&mut EnableState>) -> Code {
    let end = library::link("nvmlDeviceGetNvLinkState", device, link);
    Code::of(end.and_then(|end| write_output(is_active, (end != End::Down).into())))
}

/// `nvmlReturn_t nvmlDeviceGetNvLinkRemoteDeviceType(nvmlDevice_t device, unsigned int link, nvmlIntNvLinkDeviceType_t
/// *type)`: not supported for a link that is down.
#[unsafe(no_mangle)]
pub extern "C" fn nvmlDeviceGetNvLinkRemoteDeviceType(
    device: Device,
    link: c_uint,
    remote: Option<&mut DeviceType>,
) -> Code {
    let found = library::link("nvmlDeviceGetNvLinkRemoteDeviceType", device, link).and_then(|end| match end {
        End::Gpu(_) => Ok(DeviceType::GPU),
        End::Switch(_) => Ok(DeviceType::SWITCH),
        End::Down => Err(Code::NOT_SUPPORTED),
    });
    Code::of(found.and_then(|found| write_output(remote, found)))
}

/// `nvmlReturn_t nvmlDeviceGetNvLinkRemotePciInfo_v2(nvmlDevice_t device, unsigned int link, nvmlPciInfo_t *pci)`: not
/// supported for a link that is down.
#[unsafe(no_mangle)]
pub extern "C" fn nvmlDeviceGetNvLinkRemotePciInfo_v2(device: Device, link: c_uint, pci: Option<&mut PciInfo>) -> Code {
    let bus = library::link("nvmlDeviceGetNvLinkRemotePciInfo_v2", device, link).and_then(|end| match end {
        End::Gpu(gpu) => Ok(identity::bus(gpu as i32).cast_unsigned()),
        End::Switch(switch) => Ok(library::bus_of_switch(switch)),
        End::Down => Err(Code::NOT_SUPPORTED),
    });
    Code::of(bus.and_then(|bus| write_output(pci, info(bus))))
}

fn info(bus: c_uint) -> PciInfo {
    PciInfo {
        bus_id_legacy: text(&format!("0000:{bus:02X}:00.0")),
        domain: 0,
        bus,
        device: 0,
        pci_device_id: 0,
        pci_subsystem_id: 0,
        bus_id: text(&format!("00000000:{bus:02X}:00.0")),
    }
}

fn text<const ROOM: usize>(text: &str) -> [c_char; ROOM] {
    array::from_fn(|at| text.as_bytes().get(at).map_or(0, |byte| *byte as c_char))
}
