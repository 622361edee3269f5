//! Access to other devices' memory.

#![allow(unsafe_code, reason = "C functions")]

use std::ffi::{c_int, c_uint};

use super::write_output;
use crate::cuda::abi::{Code, Context, DeviceId};
use crate::cuda::{device, peer};

/// `CUresult cuDeviceCanAccessPeer(int *canAccessPeer, CUdevice, CUdevice peer)`
#[unsafe(no_mangle)]
pub extern "C" fn cuDeviceCanAccessPeer(can: Option<&mut c_int>, device: DeviceId, peer: DeviceId) -> Code {
    Code::of(device::find(device).and_then(|device| {
        let peer = device::find(peer)?;
        device.fault("cuDeviceCanAccessPeer")?;
        write_output(can, peer::can_access(device, peer).into())
    }))
}

/// `CUresult cuCtxEnablePeerAccess(CUcontext peer, unsigned int flags)`: gives this thread's context access to the
/// peer's memory.
#[unsafe(no_mangle)]
pub extern "C" fn cuCtxEnablePeerAccess(peer: Context, flags: c_uint) -> Code {
    if flags != 0 {
        return Code::INVALID_VALUE;
    }
    Code::of(device::begin_call("cuCtxEnablePeerAccess").and_then(|device| {
        let peer = device::of_context(peer)?.ok_or(Code::INVALID_CONTEXT)?;
        peer::enable(device, peer)
    }))
}
