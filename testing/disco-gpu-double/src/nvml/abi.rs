//! Types and codes of the interface. Enumerations are integers.

#![allow(clippy::exhaustive_structs, reason = "the interface's")]

use std::ffi::{c_char, c_int, c_uint, c_void};

use crate::codes::codes;

codes! {
    /// `nvmlReturn_t`
    SUCCESS = 0, NVML_SUCCESS, "Success";
    UNINITIALIZED = 1, NVML_ERROR_UNINITIALIZED, "Uninitialized";
    INVALID_ARGUMENT = 2, NVML_ERROR_INVALID_ARGUMENT, "Invalid Argument";
    NOT_SUPPORTED = 3, NVML_ERROR_NOT_SUPPORTED, "Not Supported";
    NO_PERMISSION = 4, NVML_ERROR_NO_PERMISSION, "Insufficient Permissions";
    NOT_FOUND = 6, NVML_ERROR_NOT_FOUND, "Not Found";
    DRIVER_NOT_LOADED = 9, NVML_ERROR_DRIVER_NOT_LOADED, "Driver Not Loaded";
    GPU_IS_LOST = 15, NVML_ERROR_GPU_IS_LOST, "GPU is lost";
    LIB_RM_VERSION_MISMATCH = 18, NVML_ERROR_LIB_RM_VERSION_MISMATCH, "Driver/library version mismatch";
    UNKNOWN = 999, NVML_ERROR_UNKNOWN, "Unknown Error";
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
