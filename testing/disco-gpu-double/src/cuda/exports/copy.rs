//! Copies.

#![allow(unsafe_code, reason = "C functions")]

use std::ffi::c_void;
use std::ptr;

use crate::cuda::abi::{Code, DevicePointer, Stream};
use crate::cuda::copy::{HostPointer, device_to_device, device_to_host, host_to_device, submit};
use crate::cuda::stream::Work;
use crate::cuda::{device, stream};

/// `CUresult cuMemcpyHtoD_v2(CUdeviceptr to, const void *from, size_t bytes)`
///
/// # Safety
/// `from` points to `bytes` readable bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemcpyHtoD_v2(to: DevicePointer, from: *const c_void, bytes: usize) -> Code {
    let from = HostPointer(from.cast_mut());
    Code::of(enqueue("cuMemcpyHtoD_v2", None, bytes, || host_to_device(to, from, bytes)))
}

/// `CUresult cuMemcpyHtoDAsync_v2(CUdeviceptr to, const void *from, size_t bytes, CUstream)`
///
/// # Safety
/// `from` points to `bytes` readable bytes, which stay valid until the stream has made the copy if they are pinned.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemcpyHtoDAsync_v2(
    to: DevicePointer,
    from: *const c_void,
    bytes: usize,
    stream: Stream,
) -> Code {
    let from = HostPointer(from.cast_mut());
    let permitted = || stream::of_handle(stream).map_or(Ok(()), |on| from.permit(&on, bytes));
    Code::of(enqueue("cuMemcpyHtoDAsync_v2", Some(stream), bytes, || {
        permitted().and_then(|()| host_to_device(to, from, bytes))
    }))
}

/// `CUresult cuMemcpyDtoH_v2(void *to, CUdeviceptr from, size_t bytes)`
///
/// # Safety
/// `to` points to `bytes` writable bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemcpyDtoH_v2(to: *mut c_void, from: DevicePointer, bytes: usize) -> Code {
    let to = HostPointer(to);
    Code::of(device::begin_call("cuMemcpyDtoH_v2").and_then(|device| {
        let on = stream::find(ptr::null_mut(), device)?;
        submit(&on, bytes, || device_to_host(to, from, bytes))?;
        to.finish_pageable_copy(&on, bytes);
        on.finish()
    }))
}

/// `CUresult cuMemcpyDtoHAsync_v2(void *to, CUdeviceptr from, size_t bytes, CUstream)`
///
/// # Safety
/// `to` points to `bytes` writable bytes, which stay valid until the stream has made the copy.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemcpyDtoHAsync_v2(
    to: *mut c_void,
    from: DevicePointer,
    bytes: usize,
    stream: Stream,
) -> Code {
    let to = HostPointer(to);
    Code::of(device::begin_call("cuMemcpyDtoHAsync_v2").and_then(|device| {
        let on = stream::find(stream, device)?;
        to.permit(&on, bytes)?;
        submit(&on, bytes, || device_to_host(to, from, bytes))?;
        to.finish_pageable_copy(&on, bytes);
        Ok(())
    }))
}

/// `CUresult cuMemcpyDtoD_v2(CUdeviceptr to, CUdeviceptr from, size_t bytes)`: on the default stream; does not wait.
#[unsafe(no_mangle)]
pub extern "C" fn cuMemcpyDtoD_v2(to: DevicePointer, from: DevicePointer, bytes: usize) -> Code {
    Code::of(enqueue("cuMemcpyDtoD_v2", Some(ptr::null_mut()), bytes, || device_to_device(to, from, bytes)))
}

/// `CUresult cuMemcpyDtoDAsync_v2(CUdeviceptr to, CUdeviceptr from, size_t bytes, CUstream)`
#[unsafe(no_mangle)]
pub extern "C" fn cuMemcpyDtoDAsync_v2(to: DevicePointer, from: DevicePointer, bytes: usize, stream: Stream) -> Code {
    Code::of(enqueue("cuMemcpyDtoDAsync_v2", Some(stream), bytes, || device_to_device(to, from, bytes)))
}

/// Submits work to a stream. Without a stream, submits to the default stream and waits.
fn enqueue(
    function: &str,
    stream: Option<Stream>,
    bytes: usize,
    work: impl FnOnce() -> Result<Work, Code>,
) -> Result<(), Code> {
    let device = device::begin_call(function)?;
    let on = stream::find(stream.unwrap_or(ptr::null_mut()), device)?;
    submit(&on, bytes, work)?;
    if stream.is_none() { on.finish() } else { Ok(()) }
}
