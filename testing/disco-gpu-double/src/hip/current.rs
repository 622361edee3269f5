//! The current device of a thread: device 0 until the thread chooses another. HIP needs no initialization and retains
//! contexts itself.

use std::ffi::c_int;

use super::abi::Code;
use crate::cuda::device::{self, Device};

/// All devices; an error if there are none.
pub(crate) fn devices() -> Result<&'static [Device], Code> {
    device::init()?;
    let devices = device::all()?;
    if devices.is_empty() { Err(Code::NO_DEVICE) } else { Ok(devices) }
}

/// The device with an ordinal.
pub(crate) fn find(ordinal: c_int) -> Result<&'static Device, Code> {
    devices()?;
    Ok(device::find(ordinal)?)
}

/// `hipSetDevice`: sets the current device of this thread.
pub(crate) fn choose(ordinal: c_int) -> Result<(), Code> {
    let device = find(ordinal)?;
    device.fault("hipSetDevice")?;
    make(device);
    Ok(())
}

/// The current device of this thread.
pub(crate) fn current() -> Result<&'static Device, Code> {
    let first = devices()?.first();
    let device = device::current_if_any().or(first).ok_or(Code::NO_DEVICE)?;
    make(device);
    Ok(device)
}

/// Begins a call of a function of a device: returns the current device, or the injected fault or the device's sticky
/// error.
pub(crate) fn begin_call(function: &str) -> Result<&'static Device, Code> {
    current()?;
    Ok(device::begin_call(function)?)
}

/// Begins a call of a function that releases resources: like [`begin_call`], but ignores the device's sticky error.
pub(crate) fn begin_release_call(function: &str) -> Result<&'static Device, Code> {
    current()?;
    Ok(device::begin_release_call(function)?)
}

fn make(device: &'static Device) {
    device.retain_for_hip();
    device::make_current(Some(device));
}
