//! Locations of device memory, by which other processes can open it.

use serde::{Deserialize, Serialize};

use super::arena::{Block, BlockLocator};
use super::device;
use super::memory::Span;

/// The location of a span of an allocation.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq, Serialize)]
pub(crate) struct Location {
    /// The process that owns the memory.
    pub(crate) process: u32,
    /// The ordinal of the device.
    pub(crate) device: u32,
    /// The block of the allocation.
    pub(crate) locator: BlockLocator,
    /// Offset of the bytes in the allocation.
    pub(crate) offset: u64,
    /// Number of bytes.
    pub(crate) bytes: u64,
}

impl Location {
    /// The location of a span of any allocation, including allocations of a pool.
    pub(crate) fn of(span: &Span) -> Option<Self> {
        let (process, locator) = span.block().origin()?;
        let (device, offset) = (span.device().ordinal as u32, (span.address() - span.base()) as u64);
        Some(Self { process, device, locator, offset, bytes: span.bytes() as u64 })
    }

    /// Opens the memory, which stays mapped as long as the span lives. `None` if the allocation was freed, its process
    /// has ended, or this process has no permission to open it.
    pub(crate) fn open(&self) -> Option<Span> {
        let end = self.offset.checked_add(self.bytes)?;
        if end > self.locator.bytes {
            return None;
        }
        device::init().ok()?;
        let device = device::find(self.device.try_into().ok()?).ok()?;
        let block = Block::open(self.process, &self.locator)?;
        Some(Span::of_block(block, device).part(self.offset as usize, self.bytes as usize))
    }
}
