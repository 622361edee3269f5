//! What copies and fills memory when a stream comes to it. Pinned memory is read and written then, and other memory of the host's
//! before a call returns.

#![allow(unsafe_code)]

use std::ffi::c_void;
use std::slice;

use super::abi::{Code, DevicePointer};
use super::memory::Span;
use super::pinned;
use super::stream::{Stream, Work};

/// Memory of the host.
#[derive(Clone, Copy)]
pub(crate) struct Host(pub(crate) *mut c_void);

// SAFETY: it is the caller's, who leaves it alone until the copy is done.
unsafe impl Send for Host {}
// SAFETY: as above.
unsafe impl Sync for Host {}

/// Gives a stream work on some bytes; none for no bytes.
pub(crate) fn give(stream: &Stream, bytes: usize, work: impl FnOnce() -> Result<Work, Code>) -> Result<(), Code> {
    if bytes > 0 {
        stream.push(work()?);
    }
    Ok(())
}

/// From the host to a device.
pub(crate) fn upload(to: DevicePointer, from: Host, bytes: usize) -> Result<Work, Code> {
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

/// From a device to the host: see [`Host::settle`].
pub(crate) fn download(to: Host, from: DevicePointer, bytes: usize) -> Result<Work, Code> {
    let (to, from) = (to.check()?, Span::of(from, bytes)?);
    Ok(Box::new(move || {
        from.check()?;
        // SAFETY: the caller of the export has as much room there until now.
        unsafe { from.copy_to(to.pointer()) };
        Ok(())
    }))
}

/// Among devices.
pub(crate) fn across(to: DevicePointer, from: DevicePointer, bytes: usize) -> Result<Work, Code> {
    let (to, from) = (Span::of(to, bytes)?, Span::of(from, bytes)?);
    Ok(Box::new(move || {
        to.check()?;
        from.check()?;
        to.write(&from.to_vec());
        Ok(())
    }))
}

/// The same byte everywhere.
pub(crate) fn fill(pointer: DevicePointer, byte: u8, bytes: usize) -> Result<Work, Code> {
    let to = Span::of(pointer, bytes)?;
    Ok(Box::new(move || {
        to.check()?;
        to.device().check()?;
        to.fill(byte);
        Ok(())
    }))
}

impl Host {
    /// Refuses host memory that is not pinned on a captured stream: a launch can't stage such memory.
    pub(crate) fn permit(self, stream: &Stream, bytes: usize) -> Result<(), Code> {
        if bytes == 0 || pinned::holds(self.0, bytes) { Ok(()) } else { stream.capture.refuse() }
    }

    /// Waits for what was given to a stream, if it writes memory that is not pinned: that is written when the call returns.
    pub(crate) fn settle(self, stream: &Stream, bytes: usize) {
        if bytes > 0 && !pinned::holds(self.0, bytes) {
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
