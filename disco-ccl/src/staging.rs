//! Copies between host tensors and a stream. A driver may wait for the stream in a copy of ordinary host memory, and so for peers
//! that never come: so copies go by pinned memory, which it reads and writes when the stream gets there.

#![allow(unsafe_code)]

use std::mem;
use std::slice;
use std::sync::Arc;

use disco_core::{Result, Tensor};

use crate::driver::Way;
use crate::pinned::Pinned;
use crate::runtime::Runtime;

/// Pinned host memory. Dropped when no stream has it.
struct Buffer {
    pinned: Pinned,
    bytes: usize,
}

/// What is on its way.
#[derive(Default)]
pub(crate) struct Staging {
    spare: Vec<Buffer>,
    /// To the device.
    going: Vec<Buffer>,
    /// To host tensors, in order; they get it when the stream is known to be done.
    coming: Vec<(Buffer, Tensor)>,
}

impl Staging {
    /// Host to device: what is read is as it is now. The context is current.
    ///
    /// # Safety
    /// `to` is as many bytes of the runtime's device, and stays until the stream has got there.
    pub(crate) unsafe fn copy_in(&mut self, runtime: &Arc<Runtime>, to: *mut u8, from: &[u8]) -> Result<()> {
        if !self.going.is_empty() && runtime.is_idle()? {
            self.spare.append(&mut self.going);
        }
        let mut pinned = self.take(runtime, from.len())?;
        let bytes = pinned.slice(from.len());
        bytes.copy_from_slice(from);
        // SAFETY: the caller's word for `to`; the pinned memory stays until the stream has got there.
        let copied = unsafe { runtime.driver().copy(to, bytes.as_ptr(), bytes.len(), Way::ToDevice) };
        self.going.push(pinned);
        copied
    }

    /// Device to host, by [`Staging::arrive`]. The context is current.
    ///
    /// # Safety
    /// `from` is as many bytes as `to` has, of the runtime's device, and stays until the stream has got there.
    pub(crate) unsafe fn copy_out(&mut self, runtime: &Arc<Runtime>, to: &Tensor, from: *const u8) -> Result<()> {
        let mut pinned = self.take(runtime, to.byte_len())?;
        let bytes = pinned.slice(to.byte_len());
        // SAFETY: the caller's word for `from`; the pinned memory stays until the stream has got there.
        let copied = unsafe { runtime.driver().copy(bytes.as_mut_ptr(), from, bytes.len(), Way::ToHost) };
        self.coming.push((pinned, to.clone()));
        copied
    }

    /// The stream is done: host tensors get what has come for them.
    ///
    /// # Errors
    /// [`Error::Busy`](disco_core::Error::Busy) if somebody views one; the others get theirs.
    pub(crate) fn arrive(&mut self) -> Result<()> {
        let mut outcome = Ok(());
        for (mut pinned, tensor) in self.coming.drain(..) {
            let copied = tensor.bytes_mut().map(|mut to| to.copy_from_slice(pinned.slice(tensor.byte_len())));
            outcome = outcome.and(copied);
            self.spare.push(pinned);
        }
        self.spare.append(&mut self.going);
        outcome
    }

    /// Whether a stream may have some of it.
    pub(crate) fn is_lent(&self) -> bool {
        !self.going.is_empty() || !self.coming.is_empty()
    }

    /// A stream that does not end keeps it.
    pub(crate) fn forget(&mut self) {
        mem::forget(mem::take(self));
    }

    /// The smallest that will do.
    fn take(&mut self, runtime: &Arc<Runtime>, bytes: usize) -> Result<Buffer> {
        let fits = self.spare.iter().enumerate().filter(|(_, pinned)| pinned.bytes >= bytes);
        match fits.min_by_key(|(_, pinned)| pinned.bytes).map(|(at, _)| at) {
            Some(at) => Ok(self.spare.swap_remove(at)),
            None => Buffer::new(runtime, bytes),
        }
    }
}

impl Buffer {
    fn new(runtime: &Arc<Runtime>, bytes: usize) -> Result<Self> {
        let bytes = bytes.next_power_of_two().max(4096);
        let pinned = Pinned::new(runtime, bytes)?;
        // SAFETY: so many bytes were allocated just now.
        unsafe { pinned.data().write_bytes(0, bytes) };
        Ok(Self { pinned, bytes })
    }

    fn slice(&mut self, bytes: usize) -> &mut [u8] {
        // SAFETY: it has as many bytes, initialised, which are this one's alone while no stream has them.
        unsafe { slice::from_raw_parts_mut(self.pinned.data(), bytes.min(self.bytes)) }
    }
}
