//! One device with one stream on it, and the memory of tensors there; and two more streams on request: one at its side, and one of
//! the highest priority.

#![allow(unsafe_code)]

use std::fmt;
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

use super::capture::Captures;
use crate::abi::Stream;
use crate::driver::{CopyKind, Driver};
use crate::heap::{Heap, MemoryUse, Span};
use crate::polling;

/// How long the stream is waited for when there is no room, or when nobody has it any more.
const IDLE_TIMEOUT: Duration = Duration::from_secs(5);

/// One device with one stream on it. Tensors keep it.
///
/// But for [`Runtime::make_current`], it is used on threads on which the device is current.
pub struct Runtime {
    driver: Arc<dyn Driver>,
    /// The second stream, once somebody has asked for it.
    side: OnceLock<Arc<dyn Driver>>,
    /// Streams of the highest priority, of which the last is in use.
    priority_streams: Mutex<Vec<Arc<dyn Driver>>>,
    /// The memory of tensors.
    pub(super) heap: Heap,
    pub(super) captures: Captures,
    /// Number of aborted communicators whose kernels may still run on some rank of this process.
    holds: AtomicUsize,
    /// Those who know of work what its stream does not tell.
    monitors: Mutex<Vec<Weak<dyn WorkMonitor>>>,
}

/// Who knows of work on a stream what the stream does not tell.
pub(crate) trait WorkMonitor: Send + Sync {
    /// # Errors
    /// Work that is over has failed.
    fn check(&self) -> Result<()>;

    /// What streams are held up by, as far as is known.
    fn stalled_on(&self) -> Option<String>;
}

/// What keeps a storage's memory.
struct Block {
    runtime: Arc<Runtime>,
    span: Span,
}

/// Guard of [`Runtime::hold`].
pub(crate) struct Hold(Arc<Runtime>);

impl Runtime {
    /// For a driver's device, which is current, and its stream.
    pub fn new(driver: impl Driver) -> Arc<Self> {
        let (heap, captures) = (Heap::new(&driver), Captures::new(driver.graphs()));
        let (side, priority_streams, holds, monitors) =
            (OnceLock::new(), Mutex::default(), AtomicUsize::new(0), Mutex::default());
        Arc::new(Self { driver: Arc::new(driver), side, priority_streams, heap, captures, holds, monitors })
    }

    /// The second stream.
    ///
    /// # Errors
    /// It can't be made.
    pub(crate) fn side(&self) -> Result<&dyn Driver> {
        if let Some(side) = self.side.get() {
            return Ok(&**side);
        }
        let made = Arc::from(self.driver.new_stream()?);
        Ok(&**self.side.get_or_init(|| made))
    }

    /// The stream of the highest priority, for work that ends what the other streams wait for. The first call makes it, and comes
    /// before anything waits: a stream that is made later may be held up.
    ///
    /// # Errors
    /// It can't be made.
    pub(crate) fn priority_stream(&self) -> Result<Arc<dyn Driver>> {
        let last = self.lock_priority_streams().last().cloned();
        last.map_or_else(|| self.replace_priority_stream(), Ok)
    }

    /// Puts a new stream in the place of the one in use, which keeps its work.
    ///
    /// # Errors
    /// It can't be made.
    pub(crate) fn replace_priority_stream(&self) -> Result<Arc<dyn Driver>> {
        let made: Arc<dyn Driver> = Arc::from(self.driver.new_priority_stream()?);
        self.lock_priority_streams().push(made.clone());
        Ok(made)
    }

    fn lock_priority_streams(&self) -> MutexGuard<'_, Vec<Arc<dyn Driver>>> {
        sync::lock(&self.priority_streams)
    }

    /// Asks somebody from now on, who is held weakly, where work is waited for.
    pub(crate) fn add_monitor(&self, monitor: Weak<dyn WorkMonitor>) {
        let mut monitors = sync::lock(&self.monitors);
        monitors.retain(|monitor| monitor.strong_count() > 0);
        monitors.push(monitor);
    }

    /// Whether work that is over has gone well, as far as is known.
    ///
    /// # Errors
    /// What has not.
    pub(crate) fn check(&self) -> Result<()> {
        self.live_monitors().iter().try_for_each(|monitor| monitor.check())
    }

    /// What the streams are held up by, as far as is known.
    pub(crate) fn stalled_on(&self) -> Option<String> {
        self.live_monitors().iter().find_map(|monitor| monitor.stalled_on())
    }

    fn live_monitors(&self) -> SmallVec<[Arc<dyn WorkMonitor>; 2]> {
        let monitors = sync::lock(&self.monitors);
        monitors.iter().filter_map(Weak::upgrade).collect()
    }

    /// The driver, for those who know its type.
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
    /// The driver's own.
    pub fn make_current(&self) -> Result<()> {
        self.driver.make_current()
    }

    /// The stream.
    pub fn stream(&self) -> Stream {
        self.driver.stream()
    }

    /// So many bytes, with anything in them. After its drop the memory stays, or is used again in the order of the stream alone,
    /// until the stream has got there; dropping it waits for nothing. After an abort this waits up to 5 s
    /// until the operation has ended on all ranks of the process: until then they may write to each other's tensors.
    ///
    /// # Errors
    /// No room; the stream is being captured.
    pub fn alloc(self: &Arc<Self>, bytes: usize) -> Result<Arc<Storage>> {
        self.refuse_in_capture("allocation", "allocate tensors before the capture")?;
        self.wait_for_peers();
        let settle = || _ = self.wait_all_idle(IDLE_TIMEOUT);
        let found = self.heap.alloc(self.driver(), bytes, settle)?;
        let span = found.ok_or_else(|| self.no_room(bytes))?;
        let owner = Box::new(Block { runtime: self.clone(), span });
        // SAFETY: it is so many bytes of this device's memory, until the block is dropped; any bytes are elements.
        Ok(unsafe { Storage::from_raw(span.data, bytes, self.device(), owner) })
    }

    /// Zeros, on the stream.
    ///
    /// # Errors
    /// The driver's own.
    pub fn clear(&self, storage: &Storage) -> Result<()> {
        match storage.byte_len() {
            0 => Ok(()),
            // SAFETY: it is device memory of so many bytes, which stays until the stream got there.
            bytes => unsafe { self.driver.clear(storage.pointer(), bytes) },
        }
    }

    /// Copies on the device, in the order of the stream.
    ///
    /// # Safety
    /// Both are so many bytes of the device's memory, and stay until the stream has got there.
    pub(crate) unsafe fn copy(&self, to: *mut u8, from: *const u8, bytes: usize) -> Result<()> {
        match bytes {
            0 => Ok(()),
            // SAFETY: as the caller promises.
            bytes => unsafe { self.driver.copy(to, from, bytes, CopyKind::OnDevice) },
        }
    }

    /// Whether all work on the stream is done; false while the stream is being captured.
    ///
    /// # Errors
    /// The driver's own, of work that failed.
    pub(crate) fn is_idle(&self) -> Result<bool> {
        self.ask(|| self.driver.is_idle())
    }

    /// The same of the other streams, too: the second may wait for peers while the first has nothing to do.
    ///
    /// # Errors
    /// As [`Runtime::is_idle`].
    pub(crate) fn is_all_idle(&self) -> Result<bool> {
        let priority_streams = self.lock_priority_streams().clone();
        let others = self.side.get().into_iter().chain(&priority_streams);
        let is_idle =
            others.map(|stream| stream.is_idle()).try_fold(true, |all, is_idle| is_idle.map(|is| all && is))?;
        Ok(self.is_idle()? && is_idle)
    }

    /// Gives memory that no tensor has back to the device until no more than `keep` bytes are reserved.
    ///
    /// The driver may wait for all work of the device and of its peers: call this where no peer waits for this rank. Nothing else
    /// calls it, but an allocation that finds no room.
    ///
    /// # Errors
    /// The streams are not done after 5 s; the stream is being captured; the driver's own.
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

    /// What it has of the device's memory.
    pub fn memory(&self) -> MemoryUse {
        self.heap.usage()
    }

    #[cold]
    fn no_room(&self, bytes: usize) -> Error {
        let MemoryUse { in_use, reserved, .. } = self.memory();
        let why = format!("tensors of this worker have {in_use} of {reserved} reserved bytes");
        Error::OutOfMemory { bytes, memory: Memory::Device(self.device()), why: Some(why) }
    }

    /// While the returned guard exists, [`Runtime::alloc`] waits: ranks of this process may still write to freed memory.
    pub(crate) fn hold(self: &Arc<Self>) -> Hold {
        self.holds.fetch_add(1, Ordering::SeqCst);
        Hold(self.clone())
    }

    /// Waits up to 5 s until no [`Hold`] exists.
    pub(crate) fn wait_for_peers(&self) {
        let start = Instant::now();
        while !self.are_peers_over(start) {
            thread::sleep(polling::POLL_INTERVAL);
        }
    }

    /// Whether no [`Hold`] exists, or 5 s have passed since `start`, which is logged.
    pub(super) fn are_peers_over(&self, start: Instant) -> bool {
        let (are_over, is_late) = (self.holds.load(Ordering::SeqCst) == 0, start.elapsed() > IDLE_TIMEOUT);
        if !are_over && is_late {
            tracing::warn!(device = %self.device(), after = ?IDLE_TIMEOUT, "an aborted operation has not ended on all ranks");
        }
        are_over || is_late
    }

    /// Waits until no stream has anything to do, for as long as `limit`. Whether that is so; what has failed is over, too.
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

/// On whatever thread had the last tensor. Waits for nothing.
impl Drop for Runtime {
    fn drop(&mut self) {
        self.give_back_deferred();
        let priority_streams = mem::take(&mut *self.lock_priority_streams());
        let streams: SmallVec<[Arc<dyn Driver>; 4]> =
            [Some(&self.driver), self.side.get()].into_iter().flatten().cloned().chain(priority_streams).collect();
        let is_idle = move || streams.iter().all(|stream| stream.is_idle().unwrap_or(true));
        self.heap.end(&self.driver, IDLE_TIMEOUT, is_idle);
    }
}

impl fmt::Debug for Runtime {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "<stream on {}>", self.device())
    }
}
