//! Copies. Those that are asynchronous read and write pinned memory when the stream comes to them, and other memory of the host's
//! before they return.

#![allow(unsafe_code, reason = "C functions")]

use std::ffi::c_void;
use std::{ptr, slice};

use crate::cuda::abi::{Code, DevicePointer, Stream};
use crate::cuda::memory::Span;
use crate::cuda::stream::Work;
use crate::cuda::{device, pinned, stream};

/// `CUresult cuMemcpyHtoD_v2(CUdeviceptr to, const void *from, size_t bytes)`
///
/// # Safety
/// There are as many bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemcpyHtoD_v2(to: DevicePointer, from: *const c_void, bytes: usize) -> Code {
    let from = Host(from.cast_mut());
    Code::of(enqueue("cuMemcpyHtoD_v2", None, bytes, || upload(to, from, bytes)))
}

/// `CUresult cuMemcpyHtoDAsync_v2(CUdeviceptr to, const void *from, size_t bytes, CUstream)`
///
/// # Safety
/// There are as many bytes, until the stream has come to it where they are pinned.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemcpyHtoDAsync_v2(
    to: DevicePointer,
    from: *const c_void,
    bytes: usize,
    stream: Stream,
) -> Code {
    let from = Host(from.cast_mut());
    Code::of(enqueue("cuMemcpyHtoDAsync_v2", Some(stream), bytes, || upload(to, from, bytes)))
}

/// `CUresult cuMemcpyDtoH_v2(void *to, CUdeviceptr from, size_t bytes)`
///
/// # Safety
/// There is room for as many bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemcpyDtoH_v2(to: *mut c_void, from: DevicePointer, bytes: usize) -> Code {
    let to = Host(to);
    Code::of(enqueue("cuMemcpyDtoH_v2", None, bytes, || download(to, from, bytes)))
}

/// `CUresult cuMemcpyDtoHAsync_v2(void *to, CUdeviceptr from, size_t bytes, CUstream)`
///
/// # Safety
/// There is room for as many bytes until the stream has come to it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemcpyDtoHAsync_v2(
    to: *mut c_void,
    from: DevicePointer,
    bytes: usize,
    stream: Stream,
) -> Code {
    let to = Host(to);
    let copied = enqueue("cuMemcpyDtoHAsync_v2", Some(stream), bytes, || download(to, from, bytes));
    // The driver has written memory that is not its own when the call returns.
    if copied.is_ok() && bytes > 0 && !pinned::holds(to.0, bytes) {
        let on = device::current().and_then(|device| stream::find(stream, device));
        return Code::of(on.map(|on| on.synchronize()));
    }
    Code::of(copied)
}

/// `CUresult cuMemcpyDtoD_v2(CUdeviceptr to, CUdeviceptr from, size_t bytes)`: on the default stream, and not waited for.
#[unsafe(no_mangle)]
pub extern "C" fn cuMemcpyDtoD_v2(to: DevicePointer, from: DevicePointer, bytes: usize) -> Code {
    Code::of(enqueue("cuMemcpyDtoD_v2", Some(ptr::null_mut()), bytes, || across(to, from, bytes)))
}

/// `CUresult cuMemcpyDtoDAsync_v2(CUdeviceptr to, CUdeviceptr from, size_t bytes, CUstream)`
#[unsafe(no_mangle)]
pub extern "C" fn cuMemcpyDtoDAsync_v2(to: DevicePointer, from: DevicePointer, bytes: usize, stream: Stream) -> Code {
    Code::of(enqueue("cuMemcpyDtoDAsync_v2", Some(stream), bytes, || across(to, from, bytes)))
}

/// Memory of the host.
#[derive(Clone, Copy)]
struct Host(*mut c_void);

// SAFETY: it is the caller's, who leaves it alone until the copy is done.
unsafe impl Send for Host {}

impl Host {
    fn pointer(self) -> *mut u8 {
        self.0.cast()
    }

    fn check(self) -> Result<Self, Code> {
        if self.0.is_null() { Err(Code::INVALID_VALUE) } else { Ok(self) }
    }
}

/// Gives work to a stream; without one, to the default stream, and waits for it.
fn enqueue(
    function: &str,
    stream: Option<Stream>,
    bytes: usize,
    work: impl FnOnce() -> Result<Work, Code>,
) -> Result<(), Code> {
    let device = device::enter(function)?;
    let on = stream::find(stream.unwrap_or(ptr::null_mut()), device)?;
    if bytes > 0 {
        on.push(work()?);
    }
    if stream.is_none() {
        on.synchronize();
        on.device().check()?;
    }
    Ok(())
}

fn upload(to: DevicePointer, from: Host, bytes: usize) -> Result<Work, Code> {
    let (to, from) = (Span::of(to, bytes)?, from.check()?);
    if pinned::holds(from.0, bytes) {
        return Ok(Box::new(move || {
            to.check()?;
            // SAFETY: the caller of the export has as many bytes there until now.
            to.write(unsafe { slice::from_raw_parts(from.pointer(), bytes) });
            Ok(())
        }));
    }
    // The driver has read memory that is not its own when the call returns.
    // SAFETY: the caller of the export has as many bytes there.
    let staged = unsafe { slice::from_raw_parts(from.pointer(), bytes) }.to_vec();
    Ok(Box::new(move || {
        to.check()?;
        to.write(&staged);
        Ok(())
    }))
}

fn download(to: Host, from: DevicePointer, bytes: usize) -> Result<Work, Code> {
    let (to, from) = (to.check()?, Span::of(from, bytes)?);
    Ok(Box::new(move || {
        from.check()?;
        // SAFETY: the caller of the export has as much room there until now.
        unsafe { from.copy_to(to.pointer()) };
        Ok(())
    }))
}

fn across(to: DevicePointer, from: DevicePointer, bytes: usize) -> Result<Work, Code> {
    let (to, from) = (Span::of(to, bytes)?, Span::of(from, bytes)?);
    Ok(Box::new(move || {
        to.check()?;
        from.check()?;
        to.write(&from.to_vec());
        Ok(())
    }))
}
