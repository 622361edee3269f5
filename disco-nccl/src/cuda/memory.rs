//! Device memory of one stream.
//!
//! The driver's own free waits for all that the device does, and so for peers that may never come. So what is dropped is kept: an
//! allocation of the same size takes it, which needs no wait, since all uses are on the one stream, in order. It is freed when the
//! stream has nothing to do and there is too much of it or no room, and with the stream.

#![allow(unsafe_code)]

use std::mem::ManuallyDrop;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use cudarc::driver::{CudaContext, CudaStream, result, sys};
use disco_core::tensor::Storage;
use disco_core::{Device, Result};

use super::current;
use super::error::check;

/// What is kept for later allocations, in bytes.
const KEPT: usize = 256 << 20;
/// How long the stream is waited for when there is no room, or when nobody has it any more.
const LIMIT: Duration = Duration::from_secs(5);
const LOOK: Duration = Duration::from_micros(50);

/// A stream with its memory, on a device's primary context.
pub(super) struct Pool {
    pub(super) context: ManuallyDrop<Arc<CudaContext>>,
    pub(super) stream: ManuallyDrop<Arc<CudaStream>>,
    /// What was dropped and is not freed.
    dropped: Mutex<Vec<Span>>,
}

#[derive(Clone, Copy)]
struct Span {
    address: sys::CUdeviceptr,
    bytes: usize,
}

/// What keeps a storage's memory.
struct Block {
    pool: Arc<Pool>,
    span: Span,
}

impl Pool {
    /// A new stream, whose context becomes current.
    pub(super) fn new(ordinal: usize) -> Result<Arc<Self>> {
        let context = check("cuDevicePrimaryCtxRetain", CudaContext::new(ordinal))?;
        // With tracking on, making the first stream waits for all that the device does.
        // SAFETY: nothing is tracked yet.
        unsafe { context.disable_event_tracking() };
        let stream = context.new_stream();
        // SAFETY: as above.
        unsafe { context.enable_event_tracking() };
        let stream = ManuallyDrop::new(check("cuStreamCreate", stream)?);
        Ok(Arc::new(Self { context: ManuallyDrop::new(context), stream, dropped: Mutex::default() }))
    }

    /// So many bytes on a device, which is the pool's and current, with anything in them.
    pub(super) fn alloc(self: &Arc<Self>, bytes: usize, device: Device) -> Result<Arc<Storage>> {
        let span = match self.take(bytes) {
            Some(span) => span,
            None => self.alloc_new(bytes)?,
        };
        let owner = Box::new(Block { pool: self.clone(), span });
        // SAFETY: it is so many bytes of this device's memory, until the block is dropped; any bytes are elements.
        Ok(unsafe { Storage::from_raw(span.address as *mut u8, bytes, device, owner) })
    }

    /// One that was dropped: whoever had it used it on the stream, before.
    fn take(&self, bytes: usize) -> Option<Span> {
        let mut dropped = self.dropped();
        let at = dropped.iter().position(|span| span.bytes == bytes)?;
        Some(dropped.swap_remove(at))
    }

    fn alloc_new(&self, bytes: usize) -> Result<Span> {
        // SAFETY: whoever reads it writes it first.
        let alloc = || unsafe { result::malloc_sync(bytes.max(1)) };
        let address = match alloc() {
            Err(error) if error.0 == sys::CUresult::CUDA_ERROR_OUT_OF_MEMORY && !self.dropped().is_empty() => {
                self.wait_idle();
                self.free_dropped();
                alloc()
            }
            result => result,
        };
        Ok(Span { address: check("cuMemAlloc", address)?, bytes })
    }

    /// Whether all work on the stream is done.
    pub(super) fn is_idle(&self) -> Result<bool> {
        // SAFETY: the stream is there.
        match unsafe { sys::cuStreamQuery(self.stream.cu_stream()) } {
            sys::CUresult::CUDA_ERROR_NOT_READY => Ok(false),
            result => check("cuStreamQuery", result.result()).map(|()| true),
        }
    }

    /// Frees what was dropped where that is too much to be kept. The context is current.
    pub(super) fn trim(&self) {
        if self.dropped_bytes() > KEPT {
            self.free_dropped();
        }
    }

    /// Frees what was dropped, if the stream has nothing to do. The context is current.
    fn free_dropped(&self) {
        if !self.is_idle().unwrap_or_default() {
            return;
        }
        for span in std::mem::take(&mut *self.dropped()) {
            // SAFETY: it was allocated in this context, nobody has it, and it is freed once.
            if let Err(error) = check("cuMemFree", unsafe { result::free_sync(span.address) }) {
                tracing::warn!(%error, bytes = span.bytes, "device memory is left behind");
            }
        }
    }

    fn wait_idle(&self) {
        let start = Instant::now();
        while matches!(self.is_idle(), Ok(false)) && start.elapsed() < LIMIT {
            thread::sleep(LOOK);
        }
    }

    fn dropped_bytes(&self) -> usize {
        self.dropped().iter().map(|span| span.bytes).sum()
    }

    fn dropped(&self) -> MutexGuard<'_, Vec<Span>> {
        self.dropped.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Block {
    fn drop(&mut self) {
        self.pool.dropped().push(self.span);
    }
}

/// On whatever thread had the last tensor.
impl Drop for Pool {
    fn drop(&mut self) {
        let context = (*self.context).clone();
        current::with(&context, || {
            self.wait_idle();
            self.free_dropped();
            let left = self.dropped_bytes();
            if left > 0 {
                tracing::warn!(bytes = left, "device memory is left behind: its stream does not end");
            }
            // These make the context current, too.
            // SAFETY: nobody uses it any more.
            unsafe { ManuallyDrop::drop(&mut self.stream) };
            // SAFETY: as above.
            unsafe { ManuallyDrop::drop(&mut self.context) };
        });
    }
}
