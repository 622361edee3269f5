//! Locations of bytes of device memory, of this or another process, for other processes.

use super::arena::{Block, BlockLocator};
use super::device;
use super::memory::Span;

/// Bytes of an allocation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Location {
    /// The process whose memory it is.
    pub(crate) process: u32,
    /// The number of the device.
    pub(crate) device: u32,
    /// The allocation.
    pub(crate) locator: BlockLocator,
    /// Offset of the bytes in the allocation.
    pub(crate) offset: u64,
    /// Number.
    pub(crate) bytes: u64,
}

impl Location {
    /// That of bytes of any allocation, one of a pool too.
    pub(crate) fn of(span: &Span) -> Option<Self> {
        let (process, locator) = span.block().origin()?;
        let (device, offset) = (span.device().ordinal as u32, (span.address() - span.base()) as u64);
        Some(Self { process, device, locator, offset, bytes: span.bytes() as u64 })
    }

    /// The bytes, for as long as the span is there. None: the allocation was freed, its process has ended, or this
    /// process may not look at that one.
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
