//! One device with one stream, and the memory of tensors on it. Two more streams are made on request: the side stream,
//! and a stream of the highest priority.

#![allow(unsafe_code)]

use std::mem;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, Weak};
use std::thread;
use std::time::{Duration, Instant};

use disco_core::error::Memory;
use disco_core::sync;
use disco_core::tensor::Storage;
use disco_core::{Device, Error, Result};
use smallvec::SmallVec;

use super::captures::Captures;
use super::device_times::DeviceTimes;
use crate::abi::Stream;
use crate::driver::{CopyKind, Driver};
use crate::heap::{Heap, MemoryUse, Span};
use crate::polling;

/// How long to wait for the streams: before a retry of an allocation, before a trim, and at the end.
const IDLE_TIMEOUT: Duration = Duration::from_secs(5);

/// One device with one stream. Tensors in its memory keep it alive.
///
/// The device is current on the calling thread, except for [`Runtime::make_current`].
pub struct Runtime {
    driver: Arc<dyn Driver>,
    /// The side stream, once it was requested.
    side: OnceLock<Arc<dyn Driver>>,
    /// Streams of the highest priority. The last one is in use.
    priority_streams: Mutex<Vec<Arc<dyn Driver>>>,
    /// The memory of tensors.
    pub(super) heap: Heap,
    pub(super) captures: Captures,
    /// Set while the worker has a timeline.
    pub(super) times: OnceLock<DeviceTimes>,
    /// Number of aborted communicators whose kernels may still run on some rank of this process.
    holds: AtomicUsize,
    /// Monitors that are asked by each wait.
    monitors: Mutex<Vec<Weak<dyn WorkMonitor>>>,
}

/// Reports the state of work that the driver does not report: failures of kernels, and the signal that a stream waits
/// for.
pub(crate) trait WorkMonitor: Send + Sync {
    /// Checks completed work.
    ///
    /// # Errors
    /// Completed work has failed.
    fn check(&self) -> Result<()>;

    /// Describes a wait that blocks a stream, if one is known.
    fn stalled_on(&self) -> Option<String>;
}

/// The owner of a storage's memory.
struct Block {
    runtime: Arc<Runtime>,
    span: Span,
}

/// Guard of [`Runtime::hold`], which delays allocations.
pub(crate) struct Hold(Arc<Runtime>);

impl Runtime {
    /// Makes a runtime of a driver's device and stream. The device is current.
    pub fn new(driver: impl Driver) -> Arc<Self> {
        let (heap, captures) = (Heap::new(&driver), Captures::new(driver.graphs()));
        let (side, priority_streams, times, holds, monitors) =
            (OnceLock::new(), Mutex::default(), OnceLock::new(), AtomicUsize::new(0), Mutex::default());
        Arc::new(Self { driver: Arc::new(driver), side, priority_streams, heap, captures, times, holds, monitors })
    }

    /// The side stream. The first call makes it.
    ///
    /// # Errors
    /// Errors of the driver.
    pub(crate) fn side(&self) -> Result<&dyn Driver> {
        if let Some(side) = self.side.get() {
            return Ok(&**side);
        }
        let made = Arc::from(self.driver.new_stream()?);
        Ok(&**self.side.get_or_init(|| made))
    }

    /// The stream of the highest priority, for work that ends waits of the other streams. The first call makes it. Make
    /// it before any stream waits, since a stream that is made later may be blocked.
    ///
    /// # Errors
    /// Errors of the driver.
    pub(crate) fn priority_stream(&self) -> Result<Arc<dyn Driver>> {
        let last = self.lock_priority_streams().last().cloned();
        last.map_or_else(|| self.replace_priority_stream(), Ok)
    }

    /// Replaces the stream of the highest priority by a new one. The old stream keeps its work.
    ///
    /// # Errors
    /// Errors of the driver.
    pub(crate) fn replace_priority_stream(&self) -> Result<Arc<dyn Driver>> {
        let made: Arc<dyn Driver> = Arc::from(self.driver.new_priority_stream()?);
        self.lock_priority_streams().push(made.clone());
        Ok(made)
    }

    fn lock_priority_streams(&self) -> MutexGuard<'_, Vec<Arc<dyn Driver>>> {
        sync::lock(&self.priority_streams)
    }

    /// Adds a monitor, which later waits ask. The runtime holds a weak reference.
    pub(crate) fn add_monitor(&self, monitor: Weak<dyn WorkMonitor>) {
        let mut monitors = sync::lock(&self.monitors);
        monitors.retain(|monitor| monitor.strong_count() > 0);
        monitors.push(monitor);
    }

    /// Asks all monitors whether completed work has failed.
    ///
    /// # Errors
    /// The first failure.
    pub(crate) fn check(&self) -> Result<()> {
        self.live_monitors().iter().try_for_each(|monitor| monitor.check())
    }

    /// Asks all monitors for a wait that blocks a stream.
    pub(crate) fn stalled_on(&self) -> Option<String> {
        self.live_monitors().iter().find_map(|monitor| monitor.stalled_on())
    }

    fn live_monitors(&self) -> SmallVec<[Arc<dyn WorkMonitor>; 2]> {
        let monitors = sync::lock(&self.monitors);
        monitors.iter().filter_map(Weak::upgrade).collect()
    }

    /// The driver. Vendors' crates downcast it to their type.
    pub fn driver(&self) -> &dyn Driver {
        &*self.driver
    }

    /// The device.
    pub fn device(&self) -> Device {
        self.driver.device()
    }

    /// Makes the device current on the calling thread.
    ///
    /// # Errors
    /// Errors of the driver.
    pub fn make_current(&self) -> Result<()> {
        self.driver.make_current()
    }

    /// The stream.
    pub fn stream(&self) -> Stream {
        self.driver.stream()
    }

    /// Allocates `bytes` uninitialized bytes. A dropped storage is freed in stream order, and its drop does not wait.
    /// After an abort, this function waits up to 5 s until the operation has ended on all ranks of the process, since
    /// these ranks may still write to each other's tensors.
    ///
    /// # Errors
    /// No memory; the stream is being captured; errors of the driver.
    pub fn alloc(self: &Arc<Self>, bytes: usize) -> Result<Arc<Storage>> {
        self.refuse_in_capture("allocation", "allocate tensors before the capture")?;
        self.wait_for_peers();
        let settle = || _ = self.wait_all_idle(IDLE_TIMEOUT);
        let found = self.heap.alloc(self.driver(), bytes, settle)?;
        let span = found.ok_or_else(|| self.no_room(bytes))?;
        let owner = Box::new(Block { runtime: self.clone(), span });
        // SAFETY: the block has `bytes` bytes on this device and lives until `owner` is dropped. Every bit pattern is a
        // valid element.
        Ok(unsafe { Storage::from_raw(span.data, bytes, self.device(), owner) })
    }

    /// Fills a storage with zeros, in stream order.
    ///
    /// # Errors
    /// Errors of the driver.
    pub fn clear(&self, storage: &Storage) -> Result<()> {
        match storage.byte_len() {
            0 => Ok(()),
            // SAFETY: the storage has `bytes` bytes on this device, which are freed in stream order.
            bytes => unsafe { self.driver.clear(storage.pointer(), bytes) },
        }
    }

    /// Copies on the device, in stream order.
    ///
    /// # Safety
    /// `to` and `from` are `bytes` bytes of the device's memory, and stay allocated until the stream has passed the
    /// copy.
    pub(crate) unsafe fn copy(&self, to: *mut u8, from: *const u8, bytes: usize) -> Result<()> {
        match bytes {
            0 => Ok(()),
            // SAFETY: the caller guarantees that both ranges have `bytes` bytes and stay allocated until the stream has
            // passed the copy.
            bytes => unsafe { self.driver.copy(to, from, bytes, CopyKind::OnDevice) },
        }
    }

    /// Whether all work on the stream is done; false while the stream is being captured.
    ///
    /// # Errors
    /// Errors of the driver, also of work that has failed.
    pub(crate) fn is_idle(&self) -> Result<bool> {
        self.query_idle(|| self.driver.is_idle())
    }

    /// Whether all work on all streams is done: the side stream may wait for peers while the main stream is idle.
    ///
    /// # Errors
    /// As for [`Runtime::is_idle`].
    pub(crate) fn is_all_idle(&self) -> Result<bool> {
        let priority_streams = self.lock_priority_streams().clone();
        let others = self.side.get().into_iter().chain(&priority_streams);
        let is_idle =
            others.map(|stream| stream.is_idle()).try_fold(true, |all, is_idle| is_idle.map(|is| all && is))?;
        Ok(self.is_idle()? && is_idle)
    }

    /// Returns unused memory to the device until at most `keep` bytes are reserved.
    ///
    /// The driver may wait for all work of the device and of its peers, so call this function only when no peer waits
    /// for this rank. Disco itself trims only when an allocation finds no memory.
    ///
    /// # Errors
    /// The streams are not done after 5 s; the stream is being captured; errors of the driver.
    pub fn trim(&self, keep: usize) -> Result<()> {
        self.make_current()?;
        self.refuse_in_capture("trim", "trim memory before or after the capture")?;
        self.wait_for_peers();
        if !self.wait_all_idle(IDLE_TIMEOUT) {
            let state = format!("work on {} is not done", self.device());
            return Err(Error::Deadline { operation: "trim".into(), after: IDLE_TIMEOUT, state });
        }
        self.heap.trim(self.driver(), keep)
    }

    /// The use of device memory.
    pub fn memory(&self) -> MemoryUse {
        self.heap.usage()
    }

    #[cold]
    fn no_room(&self, bytes: usize) -> Error {
        let MemoryUse { in_use, reserved, .. } = self.memory();
        let why = format!("tensors of this worker have {in_use} of {reserved} reserved bytes");
        Error::OutOfMemory { bytes, memory: Memory::Device(self.device()), why: Some(why) }
    }

    /// While the returned guard exists, [`Runtime::alloc`] waits: ranks of this process may still write to freed
    /// memory.
    pub(crate) fn hold(self: &Arc<Self>) -> Hold {
        self.holds.fetch_add(1, Ordering::SeqCst);
        Hold(self.clone())
    }

    /// Whether the device is done with memory of the program that an operation has used. Waits up to 5 s for the streams,
    /// and up to 5 s for the other ranks of this process, which may write to the memory after an abort.
    pub fn wait_until_unused(&self) -> bool {
        self.wait_all_idle(IDLE_TIMEOUT) && polling::wait_up_to(IDLE_TIMEOUT, || self.holds.load(Ordering::SeqCst) == 0)
    }

    /// Waits up to 5 s until no [`Hold`] exists.
    pub(crate) fn wait_for_peers(&self) {
        let start = Instant::now();
        while !self.are_peers_done(start) {
            thread::sleep(polling::POLL_INTERVAL);
        }
    }

    /// Whether no [`Hold`] exists, or 5 s have passed since `start`, which is logged.
    pub(super) fn are_peers_done(&self, start: Instant) -> bool {
        let (are_over, is_late) = (self.holds.load(Ordering::SeqCst) == 0, start.elapsed() > IDLE_TIMEOUT);
        if !are_over && is_late {
            let device = self.device();
            tracing::warn!(%device, after = ?IDLE_TIMEOUT, "an aborted operation has not ended on all ranks");
        }
        are_over || is_late
    }

    /// Waits at most `limit` until all streams are idle. Returns whether they are. A stream whose work has failed
    /// counts as idle.
    pub(crate) fn wait_all_idle(&self, limit: Duration) -> bool {
        polling::wait_up_to(limit, || self.is_all_idle().unwrap_or(true))
    }
}

impl Drop for Hold {
    fn drop(&mut self) {
        self.0.holds.fetch_sub(1, Ordering::SeqCst);
    }
}

impl Drop for Block {
    fn drop(&mut self) {
        self.runtime.give_back(self.span);
    }
}

/// Runs on the thread that drops the last tensor. Does not wait.
impl Drop for Runtime {
    fn drop(&mut self) {
        self.end_measurements();
        self.give_back_deferred();
        let priority_streams = mem::take(&mut *self.lock_priority_streams());
        let streams: SmallVec<[Arc<dyn Driver>; 4]> =
            [Some(&self.driver), self.side.get()].into_iter().flatten().cloned().chain(priority_streams).collect();
        let is_idle = move || streams.iter().all(|stream| stream.is_idle().unwrap_or(true));
        self.heap.end(&self.driver, IDLE_TIMEOUT, is_idle);
    }
}

disco_core::format_as!(Debug for Runtime, |it| "<stream on {}>", it.device());
