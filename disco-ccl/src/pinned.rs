//! Pinned host memory, which is never freed while a communicator of this process lives: the driver's free (`cuMemFreeHost`,
//! `hipHostFree`) waits for all work of the device and of its peers, and so perhaps for a collective that waits for this rank.

#![allow(unsafe_code)]

use std::fmt;
use std::mem;
use std::sync::{Arc, Mutex, MutexGuard};

use disco_core::Result;
use disco_core::sync;

use crate::runtime::Runtime;

static PARKED: Mutex<Parked> = Mutex::new(Parked { living: 0, blocks: Vec::new() });

/// What waits for the last communicator.
struct Parked {
    living: usize,
    blocks: Vec<Block>,
}

/// Pinned host memory, at one address for host and device. The owner drops it only when no stream uses it.
pub struct Pinned(Option<Block>);

struct Block {
    runtime: Arc<Runtime>,
    data: *mut u8,
    bytes: usize,
}

// SAFETY: a block is an address of memory that it alone owns.
unsafe impl Send for Block {}
// SAFETY: as above; those who have it see to who writes.
unsafe impl Sync for Block {}

/// While one lives, pinned memory is not freed: kernels of this process may wait for their peers.
#[derive(Debug)]
pub(crate) struct DeferFrees(());

impl Pinned {
    /// So many bytes, with anything in them. The device is current.
    ///
    /// # Errors
    /// The driver's own.
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

    /// Where it starts.
    pub fn data(&self) -> *mut u8 {
        self.0.as_ref().map_or(std::ptr::null_mut(), |block| block.data)
    }
}

impl Drop for Pinned {
    fn drop(&mut self) {
        let Some(block) = self.0.take() else { return };
        let mut parked = parked();
        match parked.living {
            0 => {
                drop(parked);
                block.free();
            }
            _ => parked.blocks.push(block),
        }
    }
}

impl Block {
    fn free(self) {
        let (driver, data) = (self.runtime.driver(), self.data);
        driver.with_current(&mut || {
            // SAFETY: it was allocated there, no stream has it, and it is freed once.
            if let Err(error) = unsafe { driver.free_pinned(data) } {
                tracing::warn!(%error, "pinned memory is left behind");
            }
        });
    }
}

impl DeferFrees {
    /// One more.
    pub(crate) fn new() -> Self {
        parked().living += 1;
        Self(())
    }
}

impl Drop for DeferFrees {
    /// The last one frees what was parked.
    fn drop(&mut self) {
        let mut parked = parked();
        parked.living = parked.living.saturating_sub(1);
        let over = if parked.living == 0 { mem::take(&mut parked.blocks) } else { Vec::new() };
        drop(parked);
        over.into_iter().for_each(Block::free);
    }
}

fn parked() -> MutexGuard<'static, Parked> {
    sync::lock(&PARKED)
}

impl fmt::Debug for Pinned {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "<{} bytes of pinned memory>", self.0.as_ref().map_or(0, |block| block.bytes))
    }
}
