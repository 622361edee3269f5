//! Initialisation, properties of devices, and the current device of a thread.

#![allow(unsafe_code, reason = "C functions")]

use std::ffi::{c_char, c_int};

use super::write_output;
use crate::cuda::identity;
use crate::hip::abi::{Code, DeviceId};
use crate::hip::{current, last};
use crate::settings;

/// `hipError_t hipRuntimeGetVersion(int *version)`: needs no device.
#[unsafe(no_mangle)]
pub extern "C" fn hipRuntimeGetVersion(version: Option<&mut c_int>) -> Code {
    last::note(write_output(version, settings::read().hip()))
}

/// `hipError_t hipGetDeviceCount(int *count)`: 0 and an error if there is no device.
#[unsafe(no_mangle)]
pub extern "C" fn hipGetDeviceCount(count: Option<&mut c_int>) -> Code {
    let devices = current::devices();
    let written = write_output(count, devices.map_or(0, |devices| devices.len() as c_int));
    last::note(written.and(devices.map(|_| ())))
}

/// `hipError_t hipSetDevice(int device)`: sets the current device of this thread.
#[unsafe(no_mangle)]
pub extern "C" fn hipSetDevice(device: c_int) -> Code {
    last::note(current::choose(device))
}

/// `hipError_t hipGetDevice(int *device)`
#[unsafe(no_mangle)]
pub extern "C" fn hipGetDevice(at: Option<&mut c_int>) -> Code {
    last::note(current::current().and_then(|device| write_output(at, device.ordinal as c_int)))
}

/// `hipError_t hipDeviceGetName(char *name, int len, hipDevice_t)`
///
/// # Safety
/// The buffer has room for `len` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hipDeviceGetName(name: *mut c_char, len: c_int, device: DeviceId) -> Code {
    // SAFETY: the caller guarantees what `# Safety` requires.
    last::note(current::find(device).and_then(|_| Ok(unsafe { identity::write(name, len, identity::NAME) }?)))
}

/// `hipError_t hipDeviceGetPCIBusId(char *id, int len, int device)`
///
/// # Safety
/// The buffer has room for `len` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hipDeviceGetPCIBusId(id: *mut c_char, len: c_int, device: c_int) -> Code {
    // SAFETY: the caller guarantees what `# Safety` requires.
    last::note(current::find(device).and_then(|_| Ok(unsafe { identity::write(id, len, &identity::pci(device)) }?)))
}
