//! Contexts. Each device has its primary context only.

#![allow(unsafe_code, reason = "C functions")]

use std::ptr;

use super::write_output;
use crate::cuda::abi::{Code, Context, DeviceId};
use crate::cuda::device;

/// `CUresult cuDevicePrimaryCtxRetain(CUcontext *context, CUdevice)`
#[unsafe(no_mangle)]
pub extern "C" fn cuDevicePrimaryCtxRetain(context: Option<&mut Context>, device: DeviceId) -> Code {
    let Some(context) = context else { return Code::INVALID_VALUE };
    Code::of(device::find(device).map(|device| *context = device.retain()))
}

/// `CUresult cuDevicePrimaryCtxRelease(CUdevice)`
#[unsafe(no_mangle)]
pub extern "C" fn cuDevicePrimaryCtxRelease(device: DeviceId) -> Code {
    Code::of(device::find(device).and_then(|device| device.release()))
}

/// `CUresult cuDevicePrimaryCtxRelease_v2(CUdevice)`
#[unsafe(no_mangle)]
pub extern "C" fn cuDevicePrimaryCtxRelease_v2(device: DeviceId) -> Code {
    Code::of(device::find(device).and_then(|device| device.release()))
}

/// `CUresult cuCtxGetCurrent(CUcontext *context)`: null if the thread has no current context.
#[unsafe(no_mangle)]
pub extern "C" fn cuCtxGetCurrent(context: Option<&mut Context>) -> Code {
    let current = || device::current_if_any().map_or(ptr::null_mut(), |device| device.context());
    Code::of(device::all().and_then(|_| write_output(context, current())))
}

/// `CUresult cuCtxSetCurrent(CUcontext)`: sets the current context of this thread.
#[unsafe(no_mangle)]
pub extern "C" fn cuCtxSetCurrent(context: Context) -> Code {
    Code::of(device::of_context(context).map(device::make_current))
}

/// `CUresult cuCtxSynchronize(void)`
#[unsafe(no_mangle)]
pub extern "C" fn cuCtxSynchronize() -> Code {
    Code::of(device::begin_call("cuCtxSynchronize").and_then(|device| device.synchronize()))
}
