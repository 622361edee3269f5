//! Copies between host tensors and a stream. The driver may wait for the stream in a copy of ordinary host memory, and so for peers
//! that never come: so copies go by pinned memory, which it reads and writes when the stream gets there.

#![allow(unsafe_code)]

use std::ffi::c_void;
use std::mem;
use std::ptr::NonNull;
use std::slice;
use std::sync::Arc;

use cudarc::driver::result;
use disco_core::{Result, Tensor};

use super::current;
use super::error::check;
use super::memory::Pool;

/// What is kept for later copies, in bytes.
const KEPT: usize = 64 << 20;

/// Pinned host memory. Dropped when no stream has it.
struct Pinned {
    pool: Arc<Pool>,
    data: NonNull<u8>,
    bytes: usize,
}

/// What is on its way.
#[derive(Default)]
pub(super) struct Staging {
    spare: Vec<Pinned>,
    /// To the device.
    going: Vec<Pinned>,
    /// To host tensors, in order; they get it when the stream is known to be done.
    coming: Vec<(Pinned, Tensor)>,
}

impl Staging {
    /// Host to device: what is read is as it is now. The context is current.
    ///
    /// # Safety
    /// `to` is as many bytes of the pool's device, and stays until the stream has got there.
    pub(super) unsafe fn copy_in(&mut self, pool: &Arc<Pool>, to: *mut u8, from: &[u8]) -> Result<()> {
        if !self.going.is_empty() && pool.is_idle()? {
            self.spare.append(&mut self.going);
        }
        let mut pinned = self.take(pool, from.len())?;
        let bytes = pinned.slice(from.len());
        bytes.copy_from_slice(from);
        // SAFETY: the caller's word for `to`; the pinned memory stays until the stream has got there.
        let copied = unsafe { result::memcpy_htod_async(to as u64, bytes, pool.stream.cu_stream()) };
        self.going.push(pinned);
        check("cuMemcpyHtoDAsync", copied)
    }

    /// Device to host, by [`Staging::arrive`]. The context is current.
    ///
    /// # Safety
    /// `from` is as many bytes as `to` has, of the pool's device, and stays until the stream has got there.
    pub(super) unsafe fn copy_out(&mut self, pool: &Arc<Pool>, to: &Tensor, from: *const u8) -> Result<()> {
        let mut pinned = self.take(pool, to.byte_len())?;
        let bytes = pinned.slice(to.byte_len());
        // SAFETY: the caller's word for `from`; the pinned memory stays until the stream has got there.
        let copied = unsafe { result::memcpy_dtoh_async(bytes, from as u64, pool.stream.cu_stream()) };
        self.coming.push((pinned, to.clone()));
        check("cuMemcpyDtoHAsync", copied)
    }

    /// The stream is done: host tensors get what has come for them.
    ///
    /// # Errors
    /// [`Error::Busy`](disco_core::Error::Busy) if somebody views one; the others get theirs.
    pub(super) fn arrive(&mut self) -> Result<()> {
        let mut outcome = Ok(());
        for (mut pinned, tensor) in self.coming.drain(..) {
            let copied = tensor.bytes_mut().map(|mut to| to.copy_from_slice(pinned.slice(tensor.byte_len())));
            outcome = outcome.and(copied);
            self.spare.push(pinned);
        }
        self.spare.append(&mut self.going);
        self.spare.sort_by_key(|pinned| pinned.bytes);
        let mut kept = 0;
        self.spare.retain(|pinned| {
            kept += pinned.bytes;
            kept <= KEPT
        });
        outcome
    }

    /// Whether a stream may have some of it.
    pub(super) fn is_lent(&self) -> bool {
        !self.going.is_empty() || !self.coming.is_empty()
    }

    /// A stream that does not end keeps it.
    pub(super) fn forget(&mut self) {
        mem::forget(mem::take(self));
    }

    /// The smallest that will do.
    fn take(&mut self, pool: &Arc<Pool>, bytes: usize) -> Result<Pinned> {
        let fits = self.spare.iter().enumerate().filter(|(_, pinned)| pinned.bytes >= bytes);
        match fits.min_by_key(|(_, pinned)| pinned.bytes).map(|(at, _)| at) {
            Some(at) => Ok(self.spare.swap_remove(at)),
            None => Pinned::new(pool, bytes),
        }
    }
}

impl Pinned {
    fn new(pool: &Arc<Pool>, bytes: usize) -> Result<Self> {
        let bytes = bytes.next_power_of_two().max(4096);
        // SAFETY: it is written before it is read.
        let data = check("cuMemHostAlloc", unsafe { result::malloc_host(bytes, 0) })?;
        // SAFETY: so many bytes were allocated just now.
        unsafe { data.cast::<u8>().write_bytes(0, bytes) };
        let data = NonNull::new(data.cast()).ok_or_else(|| disco_core::Error::invalid("no pinned memory"))?;
        Ok(Self { pool: pool.clone(), data, bytes })
    }

    fn slice(&mut self, bytes: usize) -> &mut [u8] {
        // SAFETY: it has as many bytes, initialised, which are this one's alone while no stream has them.
        unsafe { slice::from_raw_parts_mut(self.data.as_ptr(), bytes.min(self.bytes)) }
    }
}

impl Drop for Pinned {
    fn drop(&mut self) {
        let data = self.data.as_ptr().cast::<c_void>();
        current::with(&self.pool.context, || {
            // SAFETY: it was allocated there, and is freed once.
            if let Err(error) = check("cuMemFreeHost", unsafe { result::free_host(data) }) {
                tracing::warn!(%error, "pinned memory is left behind");
            }
        });
    }
}
