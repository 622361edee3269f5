//! Which device a thread has: the first, until it chooses another. Nothing needs to be initialized, and contexts are held by
//! themselves.

use std::ffi::c_int;

use super::abi::Code;
use crate::cuda::device::{self, Device};

/// All devices. That there are none is an error.
pub(crate) fn devices() -> Result<&'static [Device], Code> {
    device::init()?;
    let devices = device::all()?;
    if devices.is_empty() { Err(Code::NO_DEVICE) } else { Ok(devices) }
}

/// The device of a number.
pub(crate) fn find(ordinal: c_int) -> Result<&'static Device, Code> {
    devices()?;
    Ok(device::find(ordinal)?)
}

/// `hipSetDevice`: of this thread alone.
pub(crate) fn choose(ordinal: c_int) -> Result<(), Code> {
    let device = find(ordinal)?;
    device.fault("hipSetDevice")?;
    make(device);
    Ok(())
}

/// The device of this thread.
pub(crate) fn current() -> Result<&'static Device, Code> {
    let first = devices()?.first();
    let device = device::current_if_any().or(first).ok_or(Code::NO_DEVICE)?;
    make(device);
    Ok(device)
}

/// What every function of a device begins with: the thread's, unless it is to fail by a test's wish, or for what has failed before.
pub(crate) fn enter(function: &str) -> Result<&'static Device, Code> {
    current()?;
    Ok(device::enter(function)?)
}

/// The same for functions that give back what there is, even if something has failed before.
pub(crate) fn enter_failed(function: &str) -> Result<&'static Device, Code> {
    current()?;
    Ok(device::enter_failed(function)?)
}

fn make(device: &'static Device) {
    device.hold();
    device::make_current(Some(device));
}
