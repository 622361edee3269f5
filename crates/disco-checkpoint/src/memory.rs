//! Memory for the copies of a save, which a worker can keep for its next one.
//!
//! Copies into new memory take two to four times as long as copies into memory that has been written to: the kernel clears new
//! pages. The guide has figures.

use std::sync::{Arc, Mutex, Weak};

use disco_core::tensor::Storage;
use disco_core::{Error, Result, sync};
use memmap2::MmapMut;

use crate::output::BLOCK_BYTES;

/// From this size on, the memory has large pages where the system has them.
const LARGE_BYTES: usize = 4 << 20;

/// The memory that a worker keeps between two saves: that of one save at most.
#[derive(Debug, Default)]
pub(crate) struct Kept(Arc<Mutex<Option<MmapMut>>>);

impl Kept {
    /// Memory of at least `bytes` bytes, in whole blocks. It is the kept memory if that has the size, otherwise new
    /// memory, and other kept memory is released. With `keeps`, it is kept again when the last tensor in it is dropped,
    /// and replaces other memory that was kept meanwhile.
    ///
    /// # Errors
    /// The system has too little memory.
    pub(crate) fn take(&self, bytes: usize, keeps: bool) -> Result<Arc<Storage>> {
        let bytes = bytes.next_multiple_of(BLOCK_BYTES);
        let kept = sync::lock(&self.0).take().filter(|map| map.len() == bytes);
        let map = kept.map_or_else(|| new(bytes), Ok)?;
        let home = if keeps { Arc::downgrade(&self.0) } else { Weak::new() };
        Ok(Storage::of_owner(Block { map: Some(map), home }, |block| block.map.as_deref_mut().unwrap_or_default()))
    }
}

/// The owner of the memory of one save.
struct Block {
    /// None while it is dropped.
    map: Option<MmapMut>,
    /// The worker's [`Kept`], if the memory is to be kept and the worker exists.
    home: Weak<Mutex<Option<MmapMut>>>,
}

impl Drop for Block {
    fn drop(&mut self) {
        if let Some(home) = self.home.upgrade() {
            // Released after the lock.
            let replaced = std::mem::replace(&mut *sync::lock(&home), self.map.take());
            drop(replaced);
        }
    }
}

fn new(bytes: usize) -> Result<MmapMut> {
    let failed = |source| Error::system(format!("no room for copies of {bytes} bytes"), source);
    let map = MmapMut::map_anon(bytes).map_err(failed)?;
    if bytes >= LARGE_BYTES {
        use_large_pages(&map);
    }
    Ok(map)
}

/// Asks for large pages: the first copy into new memory has fewer page faults then.
#[cfg(target_os = "linux")]
fn use_large_pages(map: &MmapMut) {
    if let Err(error) = map.advise(memmap2::Advice::HugePage) {
        tracing::debug!(%error, "the copies of a checkpoint have no large pages");
    }
}

#[cfg(not(target_os = "linux"))]
fn use_large_pages(_: &MmapMut) {}

#[cfg(test)]
mod tests {
    use super::*;

    fn kept_bytes(kept: &Kept) -> Option<usize> {
        sync::lock(&kept.0).as_ref().map(|map| map.len())
    }

    #[test]
    fn memory_is_used_again_after_its_last_tensor_is_dropped() {
        let kept = Kept::default();
        let first = kept.take(10_000, true).unwrap();
        let (address, reader) = (first.pointer(), first.clone());
        drop(first);
        // It is still read.
        let second = kept.take(10_000, true).unwrap();
        assert_ne!(second.pointer(), address);
        drop(reader);
        // A size that needs as many blocks.
        assert_eq!(kept.take(10_001, true).unwrap().pointer(), address);
    }

    #[test]
    fn the_memory_of_one_save_is_kept() {
        let kept = Kept::default();
        let [first, second] = [1, BLOCK_BYTES + 1].map(|bytes| kept.take(bytes, true).unwrap());
        drop(first);
        assert_eq!(kept_bytes(&kept), Some(BLOCK_BYTES));
        drop(second);
        assert_eq!(kept_bytes(&kept), Some(2 * BLOCK_BYTES));
        let third = kept.take(1, true).unwrap();
        assert_eq!(kept_bytes(&kept), None, "memory of another size is released");
        drop(third);
        drop(kept.take(1, false).unwrap());
        assert_eq!(kept_bytes(&kept), None);
    }

    #[test]
    fn memory_that_returns_after_the_end_of_the_worker_is_released() {
        let kept = Kept::default();
        let (home, late) = (Arc::downgrade(&kept.0), kept.take(1, true).unwrap());
        drop(kept);
        drop(late);
        assert_eq!(home.strong_count(), 0);
    }
}
