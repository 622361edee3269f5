//! Types and codes of the interface. Enumerations are integers.

#![allow(clippy::exhaustive_structs, reason = "the interface's")]

use std::ffi::{c_char, c_int, c_uint, c_void};

/// `nvmlReturn_t`
#[repr(transparent)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Code(pub c_int);

impl Code {
    /// `NVML_SUCCESS`
    pub const SUCCESS: Self = Self(0);
    /// `NVML_ERROR_UNINITIALIZED`
    pub const UNINITIALIZED: Self = Self(1);
    /// `NVML_ERROR_INVALID_ARGUMENT`
    pub const INVALID_ARGUMENT: Self = Self(2);
    /// `NVML_ERROR_NOT_SUPPORTED`
    pub const NOT_SUPPORTED: Self = Self(3);
    /// `NVML_ERROR_NOT_FOUND`
    pub const NOT_FOUND: Self = Self(6);

    /// The return code of an export.
    pub(crate) fn of(result: Result<(), Self>) -> Self {
        result.err().unwrap_or(Self::SUCCESS)
    }
}

/// `nvmlDevice_t`
pub type Device = *mut c_void;

/// `nvmlEnableState_t`: 1 is enabled.
pub type EnableState = c_int;

/// `nvmlIntNvLinkDeviceType_t`
#[repr(transparent)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeviceType(pub c_int);

impl DeviceType {
    /// `NVML_NVLINK_DEVICE_TYPE_GPU`
    pub const GPU: Self = Self(0);
    /// `NVML_NVLINK_DEVICE_TYPE_SWITCH`
    pub const SWITCH: Self = Self(2);
}

/// `nvmlPciInfo_t`
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PciInfo {
    /// `busIdLegacy`: a text, with a domain of four digits.
    pub bus_id_legacy: [c_char; 16],
    /// `domain`
    pub domain: c_uint,
    /// `bus`
    pub bus: c_uint,
    /// `device`
    pub device: c_uint,
    /// `pciDeviceId`
    pub pci_device_id: c_uint,
    /// `pciSubSystemId`
    pub pci_subsystem_id: c_uint,
    /// `busId`: a text, with a domain of eight digits.
    pub bus_id: [c_char; 32],
}

const _: () = assert!(size_of::<PciInfo>() == 68);
