//! Copies: see [`crate::cuda::exports::copy`].

#![allow(unsafe_code, reason = "C functions")]

use std::ffi::c_void;

use crate::cuda::abi::DevicePointer;
use crate::cuda::copy::{HostPointer, device_to_device, device_to_host, host_to_device, submit};
use crate::cuda::memory::Span;
use crate::cuda::stream;
use crate::hip::abi::{Code, CopyKind, Stream};
use crate::hip::{current, last};

/// `hipError_t hipMemcpyAsync(void *to, const void *from, size_t bytes, hipMemcpyKind, hipStream_t)`: at least one side
/// is device memory, and both sides agree with the kind.
///
/// # Safety
/// Host memory has `bytes` valid bytes; pinned memory stays valid until the stream has made the copy.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hipMemcpyAsync(
    to: *mut c_void,
    from: *const c_void,
    bytes: usize,
    kind: CopyKind,
    stream: Stream,
) -> Code {
    last::note(copy(to, from.cast_mut(), bytes, kind, stream))
}

fn copy(to: *mut c_void, from: *mut c_void, bytes: usize, kind: CopyKind, stream: Stream) -> Result<(), Code> {
    let device = current::begin_call("hipMemcpyAsync")?;
    let on = stream::find(stream, device)?;
    if !(CopyKind::HOST_TO_DEVICE.0..=CopyKind::DEFAULT.0).contains(&kind.0) {
        return Err(Code::INVALID_MEMCPY_DIRECTION);
    }
    if bytes == 0 {
        return Ok(());
    }
    let is_device = |pointer: *mut c_void| Span::find(pointer.addr(), 0).is_some();
    let found = match (is_device(from), is_device(to)) {
        (false, true) => CopyKind::HOST_TO_DEVICE,
        (true, false) => CopyKind::DEVICE_TO_HOST,
        (true, true) => CopyKind::DEVICE_TO_DEVICE,
        (false, false) => return Err(Code::INVALID_VALUE),
    };
    if kind != CopyKind::DEFAULT && kind != found {
        return Err(Code::INVALID_VALUE);
    }
    let (to_device, from_device) = (to.addr() as DevicePointer, from.addr() as DevicePointer);
    match found {
        CopyKind::HOST_TO_DEVICE => {
            HostPointer(from).permit(&on, bytes)?;
            submit(&on, bytes, || host_to_device(to_device, HostPointer(from), bytes))?;
        }
        CopyKind::DEVICE_TO_HOST => {
            HostPointer(to).permit(&on, bytes)?;
            submit(&on, bytes, || device_to_host(HostPointer(to), from_device, bytes))?;
            HostPointer(to).finish_pageable_copy(&on, bytes);
        }
        _ => submit(&on, bytes, || device_to_device(to_device, from_device, bytes))?,
    }
    Ok(())
}
