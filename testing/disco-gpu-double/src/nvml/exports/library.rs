//! Initialisation, texts of errors, and handles of GPUs.

#![allow(unsafe_code, reason = "C functions")]

use std::ffi::{CStr, c_char};

use super::write_output;
use crate::nvml::abi::{Code, Device};
use crate::nvml::library;

/// `nvmlReturn_t nvmlInit_v2(void)`: counted; each call needs its `nvmlShutdown`.
#[unsafe(no_mangle)]
pub extern "C" fn nvmlInit_v2() -> Code {
    Code::of(library::start())
}

/// `nvmlReturn_t nvmlShutdown(void)`
#[unsafe(no_mangle)]
pub extern "C" fn nvmlShutdown() -> Code {
    Code::of(library::end())
}

/// `const char *nvmlErrorString(nvmlReturn_t)`
#[unsafe(no_mangle)]
pub extern "C" fn nvmlErrorString(code: Code) -> *const c_char {
    code.describe().map_or(c"unknown code", |code| code.text).as_ptr()
}

/// `nvmlReturn_t nvmlDeviceGetHandleByPciBusId_v2(const char *pciBusId, nvmlDevice_t *device)`
///
/// # Safety
/// The text ends with a NUL byte.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceGetHandleByPciBusId_v2(bus_id: *const c_char, device: Option<&mut Device>) -> Code {
    if bus_id.is_null() {
        return Code::INVALID_ARGUMENT;
    }
    // SAFETY: the caller guarantees what `# Safety` requires.
    let bus_id = unsafe { CStr::from_ptr(bus_id) }.to_str().map_err(|_| Code::INVALID_ARGUMENT);
    Code::of(bus_id.and_then(library::at).and_then(|found| write_output(device, found)))
}
