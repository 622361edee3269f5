//! Memory of other processes.

#![allow(unsafe_code, reason = "C functions")]

use std::ffi::{c_uint, c_void};
use std::ptr;

use super::write_output;
use crate::cuda::abi::DevicePointer;
use crate::cuda::ipc;
use crate::cuda::memory::Span;
use crate::hip::abi::{Code, IpcHandle};
use crate::hip::{current, last};

/// `hipError_t hipIpcGetMemHandle(hipIpcMemHandle_t *handle, void *)`: the handle has the allocation that contains the
/// pointer, and the offset of the pointer.
#[unsafe(no_mangle)]
pub extern "C" fn hipIpcGetMemHandle(handle: Option<&mut IpcHandle>, pointer: *mut c_void) -> Code {
    let handle_of = |_| write_output(handle, ipc::export(pointer.addr() as DevicePointer)?);
    last::note(current::begin_call("hipIpcGetMemHandle").and_then(handle_of))
}

/// `hipError_t hipIpcOpenMemHandle(void **pointer, hipIpcMemHandle_t, unsigned int flags)`: returns the address at the
/// offset of the exported pointer.
#[unsafe(no_mangle)]
pub extern "C" fn hipIpcOpenMemHandle(at: Option<&mut *mut c_void>, handle: IpcHandle, flags: c_uint) -> Code {
    last::note(current::begin_call("hipIpcOpenMemHandle").and_then(|device| {
        let at = at.ok_or(Code::INVALID_VALUE)?;
        let (pointer, inside) = ipc::open(&handle, flags, device)?;
        *at = ptr::with_exposed_provenance_mut((pointer + inside) as usize);
        Ok(())
    }))
}

/// `hipError_t hipIpcCloseMemHandle(void *)`: also closes it if the device has failed.
#[unsafe(no_mangle)]
pub extern "C" fn hipIpcCloseMemHandle(pointer: *mut c_void) -> Code {
    last::note(current::begin_release_call("hipIpcCloseMemHandle").and_then(|device| {
        let span = Span::of(pointer.addr() as DevicePointer, 0)?;
        ipc::close(span.base() as DevicePointer)?;
        Ok(device.check()?)
    }))
}
