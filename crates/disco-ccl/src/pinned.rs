//! Pinned host memory. While this process has a communicator or peer-to-peer memory, dropped pinned memory is parked
//! for reuse and not freed: the driver's free (`cuMemFreeHost`, `hipHostFree`) waits for all work of the device and of
//! its peers, which could be a collective that waits for this rank. Otherwise it is freed in the background.

#![allow(unsafe_code)]

use std::mem;
use std::sync::{Arc, Mutex, MutexGuard};

use disco_core::sync;
use disco_core::tensor::Storage;
use disco_core::{Device, DeviceKind, Result};

use crate::runtime::{Runtime, when_idle};

static PARKED: Mutex<Parked> = Mutex::new(Parked { deferrals: 0, blocks: Vec::new() });

/// Pinned memory that waits for the last [`DeferFrees`].
struct Parked {
    /// Number of [`DeferFrees`] values.
    deferrals: usize,
    blocks: Vec<Block>,
}

/// Pinned host memory, with the same address on the host and on the device. The owner drops it only when no stream uses
/// it.
pub struct Pinned(Option<Block>);

struct Block {
    runtime: Arc<Runtime>,
    data: *mut u8,
    bytes: usize,
}

// SAFETY: a block is the only owner of its memory.
unsafe impl Send for Block {}
// SAFETY: a shared block only gives out the address. Users of the address order their accesses.
unsafe impl Sync for Block {}

/// The owner of a host tensor's memory. Only this module makes it.
struct TensorMemory(Pinned);

/// While a value exists, pinned memory is not freed, since kernels of this process may wait for their peers.
#[derive(Debug)]
pub(crate) struct DeferFrees(());

/// Allocates zeroed pinned memory as host storage. The device is current.
///
/// # Errors
/// Errors of the driver.
pub(crate) fn alloc(runtime: &Arc<Runtime>, bytes: usize) -> Result<Arc<Storage>> {
    let pinned = Pinned::new(runtime, bytes.max(1))?;
    let data = pinned.data();
    // SAFETY: the memory has at least `bytes` bytes at this address, and nothing else uses it.
    unsafe { data.write_bytes(0, bytes) };
    // SAFETY: the memory has at least `bytes` bytes, initialised above, and lives until the owner is dropped. Nothing can
    // get its address from the owner, whose type is private.
    Ok(unsafe { Storage::from_raw(data, bytes, Device::CPU, Box::new(TensorMemory(pinned))) })
}

/// Whether [`alloc`] has allocated this storage for a device of this kind. All devices of a driver access its pinned
/// memory.
pub(crate) fn is_pinned(storage: &Storage, kind: DeviceKind) -> bool {
    let block = storage.owner::<TensorMemory>().and_then(|memory| memory.0.0.as_ref());
    block.is_some_and(|block| block.runtime.device().kind == kind)
}

impl Pinned {
    /// Allocates `bytes` uninitialized bytes. The device is current.
    ///
    /// # Errors
    /// Errors of the driver.
    pub fn new(runtime: &Arc<Runtime>, bytes: usize) -> Result<Self> {
        let device = runtime.device();
        let mut parked = parked();
        let fits = |block: &Block| block.bytes == bytes && block.runtime.device() == device;
        if let Some(at) = parked.blocks.iter().position(fits) {
            return Ok(Self(Some(parked.blocks.swap_remove(at))));
        }
        drop(parked);
        let data = runtime.driver().alloc_pinned(bytes)?;
        Ok(Self(Some(Block { runtime: runtime.clone(), data, bytes })))
    }

    /// The address.
    pub fn data(&self) -> *mut u8 {
        self.0.as_ref().map_or(std::ptr::null_mut(), |block| block.data)
    }
}

impl Drop for Pinned {
    fn drop(&mut self) {
        let unparked = self.0.take().and_then(Block::park_if_deferred);
        unparked.into_iter().for_each(Block::free);
    }
}

impl Block {
    /// Parks the memory while frees are deferred; otherwise returns it.
    fn park_if_deferred(self) -> Option<Self> {
        let mut parked = parked();
        if parked.deferrals == 0 {
            return Some(self);
        }
        parked.blocks.push(self);
        None
    }

    /// Frees the memory in the background once the stream is idle: the free would wait for the stream, and would end a
    /// capture. Parks it if frees are deferred by then.
    fn free(self) {
        let (runtime, mut block) = (self.runtime.clone(), Some(self));
        when_idle(&runtime, "pinned memory", move || {
            block.take().and_then(Self::park_if_deferred).into_iter().for_each(Self::free_now);
        });
    }

    /// Frees the memory. The device is current.
    fn free_now(self) {
        // SAFETY: this driver allocated the memory, no stream uses it, and it is freed once.
        if let Err(error) = unsafe { self.runtime.driver().free_pinned(self.data) } {
            tracing::warn!(%error, "pinned memory can't be freed and is leaked");
        }
    }
}

impl DeferFrees {
    /// Defers frees until the drop.
    pub(crate) fn new() -> Self {
        parked().deferrals += 1;
        Self(())
    }
}

impl Drop for DeferFrees {
    /// The last drop frees the parked memory.
    fn drop(&mut self) {
        let mut parked = parked();
        parked.deferrals = parked.deferrals.saturating_sub(1);
        let over = if parked.deferrals == 0 { mem::take(&mut parked.blocks) } else { Vec::new() };
        drop(parked);
        over.into_iter().for_each(Block::free);
    }
}

fn parked() -> MutexGuard<'static, Parked> {
    sync::lock(&PARKED)
}

disco_core::format_as!(
    Debug for Pinned, |it|
    "<{} bytes of pinned memory>", it.0.as_ref().map_or(0, |block| block.bytes)
);
