//! Initialisation, and properties of devices.

#![allow(unsafe_code, reason = "C functions")]

use std::ffi::{c_char, c_int, c_uint};

use super::write_output;
use crate::cuda::abi::{Code, DeviceId, Uuid};
use crate::cuda::{device, identity};
use crate::settings;

/// `CUresult cuInit(unsigned int flags)`
#[unsafe(no_mangle)]
pub extern "C" fn cuInit(flags: c_uint) -> Code {
    Code::of(if flags == 0 { device::init() } else { Err(Code::INVALID_VALUE) })
}

/// `CUresult cuDriverGetVersion(int *version)`: needs no `cuInit`.
#[unsafe(no_mangle)]
pub extern "C" fn cuDriverGetVersion(version: Option<&mut c_int>) -> Code {
    Code::of(write_output(version, settings::read().driver()))
}

/// `CUresult cuDeviceGet(CUdevice *device, int ordinal)`
#[unsafe(no_mangle)]
pub extern "C" fn cuDeviceGet(at: Option<&mut DeviceId>, ordinal: c_int) -> Code {
    Code::of(device::find(ordinal).and_then(|_| write_output(at, ordinal)))
}

/// `CUresult cuDeviceGetCount(int *count)`
#[unsafe(no_mangle)]
pub extern "C" fn cuDeviceGetCount(count: Option<&mut c_int>) -> Code {
    Code::of(device::all().and_then(|all| write_output(count, all.len() as c_int)))
}

/// `CUresult cuDeviceGetName(char *name, int len, CUdevice)`
///
/// # Safety
/// The buffer has room for `len` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuDeviceGetName(name: *mut c_char, len: c_int, device: DeviceId) -> Code {
    // SAFETY: the caller guarantees what `# Safety` requires.
    Code::of(device::find(device).and_then(|_| unsafe { identity::write(name, len, identity::NAME) }))
}

/// `CUresult cuDeviceGetAttribute(int *value, CUdevice_attribute, CUdevice)`: 0 for attributes that the double does not
/// know.
#[unsafe(no_mangle)]
pub extern "C" fn cuDeviceGetAttribute(value: Option<&mut c_int>, attribute: c_int, device: DeviceId) -> Code {
    let answer = match attribute {
        // MULTIPROCESSOR_COUNT
        16 => 132,
        // PCI_BUS_ID
        33 => identity::bus(device),
        // COMPUTE_CAPABILITY_MAJOR, COMPUTE_CAPABILITY_MINOR
        75 => 9,
        76 => 0,
        // CAN_USE_STREAM_MEM_OPS_V1, CAN_USE_64_BIT_STREAM_MEM_OPS_V1 and _V2. STREAM_WAIT_VALUE_NOR (94, 123) is not
        // supported.
        92 | 93 | 122 => 1,
        // Includes MEMORY_POOLS_SUPPORTED (115).
        _ => 0,
    };
    Code::of(device::find(device).and_then(|_| write_output(value, answer)))
}

/// `CUresult cuDeviceTotalMem_v2(size_t *bytes, CUdevice)`
#[unsafe(no_mangle)]
pub extern "C" fn cuDeviceTotalMem_v2(bytes: Option<&mut usize>, device: DeviceId) -> Code {
    Code::of(device::find(device).and_then(|_| write_output(bytes, settings::read().memory())))
}

/// `CUresult cuDeviceGetUuid(CUuuid *uuid, CUdevice)`
#[unsafe(no_mangle)]
pub extern "C" fn cuDeviceGetUuid(uuid: Option<&mut Uuid>, device: DeviceId) -> Code {
    Code::of(device::find(device).and_then(|_| write_output(uuid, identity::uuid(device))))
}

/// `CUresult cuDeviceGetUuid_v2(CUuuid *uuid, CUdevice)`
#[unsafe(no_mangle)]
pub extern "C" fn cuDeviceGetUuid_v2(uuid: Option<&mut Uuid>, device: DeviceId) -> Code {
    Code::of(device::find(device).and_then(|_| write_output(uuid, identity::uuid(device))))
}
