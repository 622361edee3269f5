//! Memory that the library allocates, from the driver.

#![allow(unsafe_code, reason = "C functions")]

use std::ffi::c_void;
use std::ptr;

use super::null;
use crate::cuda::abi::DevicePointer;
use crate::cuda::{device, memory};
use crate::nccl::abi::Code;
use crate::nccl::text;

/// `ncclMemAlloc(void **ptr, size_t size)`: on this thread's device.
#[unsafe(no_mangle)]
pub extern "C" fn ncclMemAlloc(at: Option<&mut *mut c_void>, size: usize) -> Code {
    let allocated = || -> Result<(), Code> {
        let at = at.ok_or_else(null)?;
        let address = memory::allocate(device::begin_call("ncclMemAlloc")?, size)?;
        *at = ptr::with_exposed_provenance_mut(address as usize);
        Ok(())
    };
    Code::of(allocated())
}

/// `ncclMemFree(void *ptr)`
#[unsafe(no_mangle)]
pub extern "C" fn ncclMemFree(pointer: *mut c_void) -> Code {
    let freed = device::current().and_then(|_| memory::free(pointer.addr() as DevicePointer));
    Code::of(
        freed.map_err(|code| text::refuse(Code::UNHANDLED_CUDA_ERROR, format!("ncclMemFree: CUDA error {}", code.0))),
    )
}
