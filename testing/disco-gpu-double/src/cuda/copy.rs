//! Copies and fills, as work of a stream. Pinned host memory is accessed when the stream runs the work, other host
//! memory before the call returns.

#![allow(unsafe_code)]

use std::ffi::c_void;
use std::slice;

use super::abi::{Code, DevicePointer};
use super::memory::Span;
use super::pinned;
use super::stream::{Stream, Work};
use crate::sync::lock;

/// Host memory.
#[derive(Clone, Copy)]
pub(crate) struct HostPointer(pub(crate) *mut c_void);

// SAFETY: the caller of the export does not access the memory until the copy is done.
unsafe impl Send for HostPointer {}
// SAFETY: the caller of the export does not access the memory until the copy is done.
unsafe impl Sync for HostPointer {}

/// Submits work on `bytes` bytes to a stream; does nothing for 0 bytes.
pub(crate) fn submit(stream: &Stream, bytes: usize, work: impl FnOnce() -> Result<Work, Code>) -> Result<(), Code> {
    if bytes > 0 {
        stream.push(work()?);
    }
    Ok(())
}

/// Copies from the host to a device.
pub(crate) fn host_to_device(to: DevicePointer, from: HostPointer, bytes: usize) -> Result<Work, Code> {
    let (to, from) = (Span::of(to, bytes)?, from.check()?);
    if pinned::holds(from.0, bytes) {
        return Ok(Box::new(move || {
            to.check()?;
            // SAFETY: the caller of the export guarantees this many readable bytes until the copy is done.
            to.write(unsafe { slice::from_raw_parts(from.pointer(), bytes) });
            Ok(())
        }));
    }
    // The driver reads memory that is not pinned before the call returns.
    // SAFETY: the caller of the export guarantees this many readable bytes.
    let staged = unsafe { slice::from_raw_parts(from.pointer(), bytes) }.to_vec();
    Ok(Box::new(move || {
        to.check()?;
        to.write(&staged);
        Ok(())
    }))
}

/// Copies from a device to the host; see [`HostPointer::finish_pageable_copy`].
pub(crate) fn device_to_host(to: HostPointer, from: DevicePointer, bytes: usize) -> Result<Work, Code> {
    let (to, from) = (to.check()?, Span::of(from, bytes)?);
    Ok(Box::new(move || {
        from.check()?;
        // SAFETY: the caller of the export guarantees this many writable bytes until the copy is done.
        unsafe { from.copy_to(to.pointer()) };
        Ok(())
    }))
}

/// Copies between devices.
pub(crate) fn device_to_device(to: DevicePointer, from: DevicePointer, bytes: usize) -> Result<Work, Code> {
    let (to, from) = (Span::of(to, bytes)?, Span::of(from, bytes)?);
    Ok(Box::new(move || {
        to.check()?;
        from.check()?;
        to.write(&from.to_vec());
        Ok(())
    }))
}

/// Fills memory with a byte.
pub(crate) fn fill(pointer: DevicePointer, byte: u8, bytes: usize) -> Result<Work, Code> {
    let to = Span::of(pointer, bytes)?;
    Ok(Box::new(move || {
        to.check()?;
        to.device().check()?;
        to.fill(byte);
        Ok(())
    }))
}

impl HostPointer {
    /// Rejects host memory that is not pinned on a captured stream: a launch can't stage such memory.
    pub(crate) fn permit(self, stream: &Stream, bytes: usize) -> Result<(), Code> {
        if bytes == 0 || pinned::holds(self.0, bytes) { Ok(()) } else { stream.capture.refuse() }
    }

    /// Waits for the stream if its work writes memory that is not pinned, which must be written when the call returns.
    /// Meanwhile, other calls for the device wait.
    pub(crate) fn finish_pageable_copy(self, stream: &Stream, bytes: usize) {
        if bytes > 0 && !pinned::holds(self.0, bytes) {
            let _held = lock(&stream.device().pageable_copy);
            stream.synchronize();
        }
    }

    fn pointer(self) -> *mut u8 {
        self.0.cast()
    }

    fn check(self) -> Result<Self, Code> {
        if self.0.is_null() { Err(Code::INVALID_VALUE) } else { Ok(self) }
    }
}
