//! Access to other devices' memory.

#![allow(unsafe_code, reason = "C functions")]

use std::ffi::{c_int, c_uint};

use super::write_output;
use crate::cuda::peer;
use crate::hip::abi::Code;
use crate::hip::{current, last};

/// `hipError_t hipDeviceCanAccessPeer(int *canAccessPeer, int device, int peer)`
#[unsafe(no_mangle)]
pub extern "C" fn hipDeviceCanAccessPeer(can: Option<&mut c_int>, device: c_int, peer: c_int) -> Code {
    last::note(current::find(device).and_then(|device| {
        let peer = current::find(peer)?;
        device.fault("hipDeviceCanAccessPeer")?;
        write_output(can, peer::can_access(device, peer).into())
    }))
}

/// `hipError_t hipDeviceEnablePeerAccess(int peer, unsigned int flags)`: gives this thread's device access to the
/// peer's memory.
#[unsafe(no_mangle)]
pub extern "C" fn hipDeviceEnablePeerAccess(peer: c_int, flags: c_uint) -> Code {
    last::note(current::begin_call("hipDeviceEnablePeerAccess").and_then(|device| {
        let peer = current::find(peer)?;
        if flags != 0 {
            return Err(Code::INVALID_VALUE);
        }
        Ok(peer::enable(device, peer)?)
    }))
}
