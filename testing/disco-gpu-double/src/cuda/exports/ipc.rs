//! Memory of other processes.

#![allow(unsafe_code, reason = "C functions")]

use std::ffi::c_uint;

use super::write_output;
use crate::cuda::abi::{Code, DevicePointer, IpcHandle};
use crate::cuda::{device, ipc};

/// `CUresult cuIpcGetMemHandle(CUipcMemHandle *handle, CUdeviceptr)`: the handle of the allocation that contains the
/// pointer.
#[unsafe(no_mangle)]
pub extern "C" fn cuIpcGetMemHandle(handle: Option<&mut IpcHandle>, pointer: DevicePointer) -> Code {
    Code::of(device::begin_call("cuIpcGetMemHandle").and_then(|_| write_output(handle, ipc::export(pointer)?)))
}

/// `CUresult cuIpcOpenMemHandle_v2(CUdeviceptr *pointer, CUipcMemHandle, unsigned int flags)`: returns the start of the
/// allocation. While the context has the allocation open, further calls return the same pointer and are counted.
#[unsafe(no_mangle)]
pub extern "C" fn cuIpcOpenMemHandle_v2(at: Option<&mut DevicePointer>, handle: IpcHandle, flags: c_uint) -> Code {
    let Some(at) = at else { return Code::INVALID_VALUE };
    let device = device::begin_call("cuIpcOpenMemHandle_v2");
    Code::of(device.and_then(|device| ipc::open(&handle, flags, device)).map(|(pointer, _)| *at = pointer))
}

/// `CUresult cuIpcCloseMemHandle(CUdeviceptr)`: also closes it if the device has failed.
#[unsafe(no_mangle)]
pub extern "C" fn cuIpcCloseMemHandle(pointer: DevicePointer) -> Code {
    let device = device::begin_release_call("cuIpcCloseMemHandle");
    Code::of(device.and_then(|device| ipc::close(pointer).and_then(|()| device.check())))
}
