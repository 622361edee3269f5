//! One device with one stream on it, and the memory of tensors there; and a second stream at its side, for who asks for it.

#![allow(unsafe_code)]

use std::fmt;
use std::sync::{Arc, Mutex, OnceLock, PoisonError, Weak};
use std::time::Duration;

use disco_core::tensor::Storage;
use disco_core::{Device, Error, Result};
use smallvec::SmallVec;

use crate::abi::Stream;
use crate::driver::{Driver, Way};
use crate::graph::Captures;
use crate::heap::{Heap, MemoryUse, Span};
use crate::patience;

/// How long the stream is waited for when there is no room, or when nobody has it any more.
const LIMIT: Duration = Duration::from_secs(5);

/// One device with one stream on it. Tensors keep it.
///
/// But for [`Runtime::enter`], it is used on threads on which the device is current.
pub struct Runtime {
    driver: Arc<dyn Driver>,
    /// The second stream, once somebody has asked for it.
    side: OnceLock<Arc<dyn Driver>>,
    /// The memory of tensors.
    pub(crate) heap: Heap,
    pub(crate) captures: Captures,
    /// Those who know of work what its stream does not tell.
    watches: Mutex<Vec<Weak<dyn Watch>>>,
}

/// Who knows of work on a stream what the stream does not tell.
pub(crate) trait Watch: Send + Sync {
    /// # Errors
    /// Work that is over has failed.
    fn check(&self) -> Result<()>;

    /// What streams are held up by, as far as is known.
    fn stuck(&self) -> Option<String>;
}

/// What keeps a storage's memory.
struct Block {
    runtime: Arc<Runtime>,
    span: Span,
}

impl Runtime {
    /// For a driver's device, which is current, and its stream.
    pub fn new(driver: impl Driver) -> Arc<Self> {
        let (heap, side, captures) = (Heap::new(&driver), OnceLock::new(), Captures::new(driver.graphs()));
        Arc::new(Self { driver: Arc::new(driver), side, heap, captures, watches: Mutex::default() })
    }

    /// The second stream.
    ///
    /// # Errors
    /// It can't be made.
    pub(crate) fn side(&self) -> Result<&dyn Driver> {
        if let Some(side) = self.side.get() {
            return Ok(&**side);
        }
        let made = Arc::from(self.driver.beside()?);
        Ok(&**self.side.get_or_init(|| made))
    }

    /// Asks somebody from now on, who is held weakly, where work is waited for.
    pub(crate) fn watch(&self, watch: Weak<dyn Watch>) {
        let mut watches = self.watches.lock().unwrap_or_else(PoisonError::into_inner);
        watches.retain(|watch| watch.strong_count() > 0);
        watches.push(watch);
    }

    /// Whether work that is over has gone well, as far as is known.
    ///
    /// # Errors
    /// What has not.
    pub(crate) fn check(&self) -> Result<()> {
        self.watching().iter().try_for_each(|watch| watch.check())
    }

    /// What the streams are held up by, as far as is known.
    pub(crate) fn stuck(&self) -> Option<String> {
        self.watching().iter().find_map(|watch| watch.stuck())
    }

    fn watching(&self) -> SmallVec<[Arc<dyn Watch>; 2]> {
        let watches = self.watches.lock().unwrap_or_else(PoisonError::into_inner);
        watches.iter().filter_map(Weak::upgrade).collect()
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
    pub fn enter(&self) -> Result<()> {
        self.driver.enter()
    }

    /// The stream.
    pub fn stream(&self) -> Stream {
        self.driver.stream()
    }

    /// So many bytes, with anything in them. After its drop the memory stays, or is used again in the order of the stream alone,
    /// until the stream has got there; dropping it waits for nothing.
    ///
    /// # Errors
    /// No room; the stream is being captured.
    pub fn alloc(self: &Arc<Self>, bytes: usize) -> Result<Arc<Storage>> {
        self.refuse_in_capture("allocation", "allocate tensors before the capture")?;
        let settle = || _ = self.wait_all_idle(LIMIT);
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
            bytes => unsafe { self.driver.copy(to, from, bytes, Way::OnDevice) },
        }
    }

    /// Whether all work on the stream is done; false while the stream is being captured.
    ///
    /// # Errors
    /// The driver's own, of work that failed.
    pub(crate) fn is_idle(&self) -> Result<bool> {
        self.ask(|| self.driver.is_idle())
    }

    /// The same of the second stream, too, which may wait for peers while the first has nothing to do.
    ///
    /// # Errors
    /// As [`Runtime::is_idle`].
    pub(crate) fn is_all_idle(&self) -> Result<bool> {
        let is_side_idle = self.side.get().map_or(Ok(true), |side| side.is_idle())?;
        Ok(self.is_idle()? && is_side_idle)
    }

    /// Gives memory that no tensor has back to the device until no more than `keep` bytes are reserved.
    ///
    /// The driver may wait for all work of the device and of its peers: call this where no peer waits for this rank. Nothing else
    /// calls it, but an allocation that finds no room.
    ///
    /// # Errors
    /// The streams are not done after 5 s; the stream is being captured; the driver's own.
    pub fn trim(&self, keep: usize) -> Result<()> {
        self.enter()?;
        self.refuse_in_capture("trim", "trim memory before or after the capture")?;
        if !self.wait_all_idle(LIMIT) {
            return Err(Error::invalid(format!("trim: work on {} is not done after {LIMIT:?}", self.device())));
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
        let device = self.device();
        Error::invalid(format!(
            "no room for {bytes} bytes on {device}: tensors of this worker have {in_use} of {reserved} reserved bytes"
        ))
    }

    /// Waits until no stream has anything to do, for as long as `limit`. Whether that is so; what has failed is over, too.
    pub(crate) fn wait_all_idle(&self, limit: Duration) -> bool {
        patience::until(limit, || self.is_all_idle().unwrap_or(true))
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
        let streams: SmallVec<[Arc<dyn Driver>; 2]> =
            [Some(&self.driver), self.side.get()].into_iter().flatten().cloned().collect();
        let is_idle = move || streams.iter().all(|stream| stream.is_idle().unwrap_or(true));
        self.heap.end(&self.driver, move || patience::until(LIMIT, is_idle));
    }
}

impl fmt::Debug for Runtime {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "<stream on {}>", self.device())
    }
}
