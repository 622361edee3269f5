//! The device memory of tensors: from the driver's pool, or, for drivers without pools, from free lists of size
//! classes.
//!
//! A driver's plain free (`cuMemFree`, `hipFree`) waits for all work of the device and of its peers, and so perhaps for
//! a collective that waits for this rank. The pool's free is work of the stream and waits for nothing. Blocks without a
//! pool are freed only by [`Heap::trim`], for an allocation that finds no room, and at the end.

#![allow(unsafe_code)]

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use disco_core::Result;
use disco_core::sync;

use crate::driver::Driver;
use crate::pool::Pool;
use crate::reaper::{self, Job};

/// Bytes that the driver's pool keeps for later allocations when the program synchronises a stream by functions of the
/// driver.
const POOL_RELEASE_THRESHOLD_BYTES: u64 = 1 << 30;
/// Number of size classes between two powers of two. A block is at most an eighth larger than the request.
const CLASSES_PER_DOUBLING: usize = 8;
/// Size of the smallest class.
const MIN_BLOCK_BYTES: usize = 512;

/// Memory of one device for one stream.
#[derive(Debug)]
pub(crate) struct Heap {
    pool: Option<Pool>,
    /// Free blocks of a heap without a pool. One stream orders all uses of a block, so the next use needs no wait.
    free_spans: Mutex<Vec<Span>>,
    in_use: AtomicUsize,
    peak: AtomicUsize,
    allocations: AtomicU64,
}

/// A block of device memory.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Span {
    pub(crate) data: *mut u8,
    /// Size of the block, which may be larger than the request.
    bytes: usize,
}

// SAFETY: a span is an address, and only the owner of its block dereferences it.
unsafe impl Send for Span {}
// SAFETY: a shared span is an address, and only the owner of its block dereferences it.
unsafe impl Sync for Span {}

/// The device memory that a [`Runtime`](crate::Runtime) uses for tensors. It does not count peer-to-peer memory and the
/// library's own memory.
#[non_exhaustive]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MemoryUse {
    /// Bytes of the blocks that tensors own.
    pub in_use: usize,
    /// The largest value of `in_use` so far.
    pub peak: usize,
    /// Bytes allocated from the device: the bytes in use, and the bytes kept for later allocations.
    pub reserved: usize,
    /// Number of allocations so far.
    pub allocations: u64,
    /// Whether the memory comes from a pool of the driver, whose frees do not wait.
    pub has_pool: bool,
}

impl Heap {
    /// Uses a pool of the driver, if the driver has pools. The device is current.
    pub(crate) fn new(driver: &dyn Driver) -> Self {
        let pool = driver.pools().and_then(|functions| {
            let device_and_stream = (driver.device().ordinal, driver.stream());
            Pool::new(functions, device_and_stream, &driver.accessors(), POOL_RELEASE_THRESHOLD_BYTES)
                .map_err(|error| error.to_string())
        });
        let pool = pool.inspect_err(|why| {
            let device = driver.device();
            tracing::info!(%device, why, "the driver has no memory pools: freeing device memory may wait for peers");
        });
        let (free_spans, in_use, peak) = (Mutex::default(), AtomicUsize::new(0), AtomicUsize::new(0));
        Self { pool: pool.ok(), free_spans, in_use, peak, allocations: AtomicU64::new(0) }
    }

    /// Allocates at least `bytes` bytes; None if the device has too little memory. Before a retry that frees kept
    /// memory, `settle` waits for the stream for a limited time.
    ///
    /// # Errors
    /// Errors of the driver.
    pub(crate) fn alloc(&self, driver: &dyn Driver, bytes: usize, settle: impl Fn()) -> Result<Option<Span>> {
        let bytes = if self.pool.is_some() { bytes.max(1) } else { class(bytes) };
        let mut found = self.take_or_allocate(driver, bytes)?;
        if found.is_none() && self.usage().reserved > self.in_use.load(Relaxed) {
            settle();
            self.trim(driver, 0)?;
            found = self.take_or_allocate(driver, bytes)?;
        }
        if let Some(span) = found {
            let in_use = self.in_use.fetch_add(span.bytes, Relaxed) + span.bytes;
            self.peak.fetch_max(in_use, Relaxed);
            self.allocations.fetch_add(1, Relaxed);
        }
        Ok(found)
    }

    fn take_or_allocate(&self, driver: &dyn Driver, bytes: usize) -> Result<Option<Span>> {
        if let Some(pool) = &self.pool {
            return Ok(pool.alloc(bytes)?.map(|data| Span { data, bytes }));
        }
        let mut free_spans = self.free_spans();
        if let Some(at) = free_spans.iter().rposition(|span| span.bytes == bytes) {
            return Ok(Some(free_spans.swap_remove(at)));
        }
        drop(free_spans);
        Ok(driver.alloc(bytes)?.map(|data| Span { data, bytes }))
    }

    /// Takes memory back. Earlier work of the stream may still use the memory.
    pub(crate) fn give_back(&self, driver: &dyn Driver, span: Span) {
        self.in_use.fetch_sub(span.bytes, Relaxed);
        let Some(pool) = &self.pool else { return self.free_spans().push(span) };
        driver.with_current(&mut || {
            // SAFETY: the pool allocated the span, no tensor owns it, and the pool's stream orders all its uses before
            // this.
            if let Err(error) = unsafe { pool.free(span.data) } {
                tracing::warn!(%error, bytes = span.bytes, "device memory can't be freed and is leaked");
            }
        });
    }

    /// Returns unused memory to the device until at most `keep` bytes are reserved. Without a pool, all work on the
    /// memory must be done.
    ///
    /// # Errors
    /// Errors of the driver.
    pub(crate) fn trim(&self, driver: &dyn Driver, keep: usize) -> Result<()> {
        if let Some(pool) = &self.pool {
            return pool.trim(keep);
        }
        loop {
            let mut free_spans = self.free_spans();
            let reserved = self.in_use.load(Relaxed) + free_spans.iter().map(|span| span.bytes).sum::<usize>();
            let Some(span) = (reserved > keep).then(|| free_spans.pop()).flatten() else { return Ok(()) };
            drop(free_spans);
            // SAFETY: this driver allocated the span, no tensor owns it, and it is freed once.
            unsafe { driver.free(span.data) }?;
        }
    }

    /// Counts the memory in use.
    pub(crate) fn usage(&self) -> MemoryUse {
        let in_use = self.in_use.load(Relaxed);
        let free_bytes = || self.free_spans().iter().map(|span| span.bytes).sum::<usize>();
        let reserved = match &self.pool {
            Some(pool) => pool.reserved().unwrap_or(in_use),
            None => in_use + free_bytes(),
        };
        let (peak, allocations) = (self.peak.load(Relaxed), self.allocations.load(Relaxed));
        MemoryUse { in_use, peak, reserved, allocations, has_pool: self.pool.is_some() }
    }

    /// Frees all memory, after the last tensor was dropped. The reaper frees kept blocks once `is_idle` returns that
    /// the streams are done, since a free may wait for peers. It leaks the blocks if the streams are not done after
    /// `limit`.
    pub(crate) fn end(
        &mut self,
        driver: &Arc<dyn Driver>,
        limit: Duration,
        is_idle: impl Fn() -> bool + Send + 'static,
    ) {
        let (pool, free_spans) = (self.pool.take(), std::mem::take(&mut *self.free_spans()));
        if let Some(pool) = pool {
            let mut pool = Some(pool);
            driver.with_current(&mut || drop(pool.take()));
        }
        if free_spans.is_empty() {
            return;
        }
        let bytes = free_spans.iter().map(|span| span.bytes).sum::<usize>();
        let (what, stream) = (format!("{bytes} bytes of {}", driver.device()), Arc::as_ptr(driver).addr());
        let driver = driver.clone();
        let free = move || {
            driver.with_current(&mut || {
                for span in &free_spans {
                    // SAFETY: this driver allocated the span, no tensor owns it, and it is freed once.
                    if let Err(error) = unsafe { driver.free(span.data) } {
                        tracing::warn!(%error, bytes = span.bytes, "device memory can't be freed and is leaked");
                    }
                }
            });
        };
        reaper::submit(Job { what, stream, limit, is_ready: Box::new(is_idle), free: Box::new(free) });
    }

    fn free_spans(&self) -> MutexGuard<'_, Vec<Span>> {
        sync::lock(&self.free_spans)
    }
}

/// The size class of an allocation of `bytes` bytes.
fn class(bytes: usize) -> usize {
    let bytes = bytes.max(MIN_BLOCK_BYTES);
    let step = (bytes.next_power_of_two() / 2 / CLASSES_PER_DOUBLING).max(MIN_BLOCK_BYTES);
    bytes.checked_next_multiple_of(step).unwrap_or(bytes)
}

#[cfg(test)]
mod tests {
    use super::{MIN_BLOCK_BYTES, class};

    #[test]
    fn a_class_is_at_most_an_eighth_larger_than_the_request() {
        for bytes in (1..20_000).chain([1 << 20, (1 << 20) + 1, (3 << 30) - 7, (8 << 20) + 512]) {
            let class = class(bytes);
            assert!(class >= bytes && class - bytes < (bytes / 8).max(MIN_BLOCK_BYTES), "{bytes}: {class}");
            assert_eq!(super::class(class), class, "{bytes}");
        }
    }

    #[test]
    fn sizes_that_differ_little_share_a_class() {
        let classes: std::collections::BTreeSet<_> = (0..200).map(|at| class((8 << 20) + 512 * (at + 1))).collect();
        assert_eq!(classes.len(), 1);
    }
}
