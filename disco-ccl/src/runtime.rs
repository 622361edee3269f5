//! One device with one stream on it, and the memory of tensors there; and a second stream at its side, for who asks for it.
//!
//! A driver's own free waits for all that the device does, and so for peers that may never come. So what is dropped is kept: an
//! allocation of the same size takes it, which needs no wait, since all uses are on the one stream, in order. It is freed when the
//! stream has nothing to do and there is too much of it or no room, and with the stream.

#![allow(unsafe_code)]

use std::fmt;
use std::mem;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};
use std::time::Duration;

use disco_core::tensor::Storage;
use disco_core::{Device, Error, Result};
use smallvec::SmallVec;

use crate::abi::Stream;
use crate::driver::{Driver, Way};
use crate::patience;

/// What is kept for later allocations, in bytes.
const KEPT: usize = 256 << 20;
/// How long the stream is waited for when there is no room, or when nobody has it any more.
const LIMIT: Duration = Duration::from_secs(5);

/// One device with one stream on it. Tensors keep it.
///
/// But for [`Runtime::enter`], it is used on threads on which the device is current.
pub struct Runtime {
    driver: Box<dyn Driver>,
    /// The second stream, once somebody has asked for it.
    side: OnceLock<Box<dyn Driver>>,
    /// What was dropped and is not freed.
    dropped: Mutex<Vec<Span>>,
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

#[derive(Clone, Copy)]
struct Span {
    data: *mut u8,
    bytes: usize,
}

// SAFETY: it is an address, of memory that nobody has.
unsafe impl Send for Span {}
// SAFETY: as above.
unsafe impl Sync for Span {}

/// What keeps a storage's memory.
struct Block {
    runtime: Arc<Runtime>,
    span: Span,
}

impl Runtime {
    /// For a driver's device and stream.
    pub fn new(driver: impl Driver) -> Arc<Self> {
        let (driver, side) = (Box::new(driver), OnceLock::new());
        Arc::new(Self { driver, side, dropped: Mutex::default(), watches: Mutex::default() })
    }

    /// The second stream.
    ///
    /// # Errors
    /// It can't be made.
    pub(crate) fn side(&self) -> Result<&dyn Driver> {
        if let Some(side) = self.side.get() {
            return Ok(&**side);
        }
        let made = self.driver.beside()?;
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
    /// No room.
    pub fn alloc(self: &Arc<Self>, bytes: usize) -> Result<Arc<Storage>> {
        let span = match self.take(bytes) {
            Some(span) => span,
            None => self.alloc_new(bytes)?,
        };
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

    /// Whether all work on the stream is done.
    ///
    /// # Errors
    /// The driver's own, of work that failed.
    pub(crate) fn is_idle(&self) -> Result<bool> {
        self.driver.is_idle()
    }

    /// The same of the second stream, too, which may wait for peers while the first has nothing to do.
    ///
    /// # Errors
    /// As [`Runtime::is_idle`].
    pub(crate) fn is_all_idle(&self) -> Result<bool> {
        let is_side_idle = self.side.get().map_or(Ok(true), |side| side.is_idle())?;
        Ok(self.driver.is_idle()? && is_side_idle)
    }

    /// Frees what was dropped where that is too much to be kept.
    pub(crate) fn trim(&self) {
        if self.dropped_bytes() > KEPT {
            self.free_dropped();
        }
    }

    /// One that was dropped: whoever had it used it on the stream, before.
    fn take(&self, bytes: usize) -> Option<Span> {
        let mut dropped = self.dropped();
        let at = dropped.iter().position(|span| span.bytes == bytes)?;
        Some(dropped.swap_remove(at))
    }

    fn alloc_new(&self, bytes: usize) -> Result<Span> {
        let alloc = || self.driver.alloc(bytes.max(1));
        let mut data = alloc()?;
        if data.is_none() && !self.dropped().is_empty() {
            self.wait_all_idle(LIMIT);
            self.free_dropped();
            data = alloc()?;
        }
        let no_room = || Error::invalid(format!("no room for {bytes} bytes on {}", self.device()));
        data.map(|data| Span { data, bytes }).ok_or_else(no_room)
    }

    /// Frees what was dropped, if no stream has anything to do.
    fn free_dropped(&self) {
        if !self.is_all_idle().unwrap_or_default() {
            return;
        }
        for span in mem::take(&mut *self.dropped()) {
            // SAFETY: it was allocated there, nobody has it, and it is freed once.
            if let Err(error) = unsafe { self.driver.free(span.data) } {
                tracing::warn!(%error, bytes = span.bytes, "device memory is left behind");
            }
        }
    }

    /// Waits until no stream has anything to do, for as long as `limit`. Whether that is so; what has failed is over, too.
    pub(crate) fn wait_all_idle(&self, limit: Duration) -> bool {
        patience::until(limit, || self.is_all_idle().unwrap_or(true))
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
        self.runtime.dropped().push(self.span);
    }
}

/// On whatever thread had the last tensor.
impl Drop for Runtime {
    fn drop(&mut self) {
        self.driver.visit(&mut || {
            self.wait_all_idle(LIMIT);
            self.free_dropped();
        });
        let left = self.dropped_bytes();
        if left > 0 {
            tracing::warn!(bytes = left, "device memory is left behind: its stream does not end");
        }
    }
}

impl fmt::Debug for Runtime {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "<stream on {}>", self.device())
    }
}
