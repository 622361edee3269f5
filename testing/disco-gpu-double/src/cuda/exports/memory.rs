//! Allocations, fills, and attributes of pointers.

#![allow(unsafe_code, reason = "C functions")]

use std::ffi::{c_uchar, c_uint, c_void};

use crate::cuda::abi::{Code, DevicePointer, Stream};
use crate::cuda::memory;
use crate::cuda::{capture, copy, device, pinned, stream};
use crate::settings;

/// `CUresult cuMemAlloc_v2(CUdeviceptr *pointer, size_t bytes)`
#[unsafe(no_mangle)]
pub extern "C" fn cuMemAlloc_v2(at: Option<&mut DevicePointer>, bytes: usize) -> Code {
    let Some(at) = at else { return Code::INVALID_VALUE };
    let device = device::begin_call("cuMemAlloc_v2");
    Code::of(device.and_then(|device| memory::allocate(device, bytes)).map(|pointer| *at = pointer))
}

/// `CUresult cuMemFree_v2(CUdeviceptr)`: waits for the work of the device and of its peers. Also frees the memory if
/// the device has failed.
#[unsafe(no_mangle)]
pub extern "C" fn cuMemFree_v2(pointer: DevicePointer) -> Code {
    let permitted = || capture::permit("cuMemFree_v2");
    Code::of(device::current().and_then(|_| permitted()).and_then(|()| memory::free(pointer)))
}

/// `CUresult cuMemHostAlloc(void **pointer, size_t bytes, unsigned flags)`
#[unsafe(no_mangle)]
pub extern "C" fn cuMemHostAlloc(at: Option<&mut *mut c_void>, bytes: usize, _: c_uint) -> Code {
    let Some(at) = at else { return Code::INVALID_VALUE };
    let device = device::begin_call("cuMemHostAlloc");
    Code::of(device.and_then(|_| pinned::allocate(bytes)).map(|pointer| *at = pointer))
}

/// `CUresult cuMemFreeHost(void *)`: waits for the work of the device and of its peers.
#[unsafe(no_mangle)]
pub extern "C" fn cuMemFreeHost(pointer: *mut c_void) -> Code {
    Code::of(device::current().and_then(|device| {
        capture::permit("cuMemFreeHost")?;
        // An error of the device's work does not make the free fail.
        _ = device.synchronize_with_peers();
        pinned::free(pointer)
    }))
}

/// `CUresult cuMemGetInfo_v2(size_t *free, size_t *total)`
#[unsafe(no_mangle)]
pub extern "C" fn cuMemGetInfo_v2(free: Option<&mut usize>, total: Option<&mut usize>) -> Code {
    let (Some(free), Some(total)) = (free, total) else { return Code::INVALID_VALUE };
    Code::of(device::begin_call("cuMemGetInfo_v2").map(|device| {
        *free = memory::unused(device);
        *total = settings::read().memory();
    }))
}

/// `CUresult cuMemsetD8_v2(CUdeviceptr, unsigned char, size_t)`: on the default stream; does not wait.
#[unsafe(no_mangle)]
pub extern "C" fn cuMemsetD8_v2(pointer: DevicePointer, byte: c_uchar, count: usize) -> Code {
    Code::of(fill("cuMemsetD8_v2", pointer, byte, count, std::ptr::null_mut()))
}

/// `CUresult cuMemsetD8Async(CUdeviceptr, unsigned char, size_t, CUstream)`
#[unsafe(no_mangle)]
pub extern "C" fn cuMemsetD8Async(pointer: DevicePointer, byte: c_uchar, count: usize, stream: Stream) -> Code {
    Code::of(fill("cuMemsetD8Async", pointer, byte, count, stream))
}

fn fill(function: &str, pointer: DevicePointer, byte: u8, count: usize, stream: Stream) -> Result<(), Code> {
    let device = device::begin_call(function)?;
    let stream = stream::find(stream, device)?;
    copy::submit(&stream, count, || copy::fill(pointer, byte, count))
}
