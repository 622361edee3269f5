//! Allocations of device memory of this and other processes. Fresh memory is filled with 0xA5, so that tests notice
//! reads of uninitialised memory.

#![allow(unsafe_code)]

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering::SeqCst};
use std::sync::{Arc, PoisonError, RwLock};
use std::{ptr, slice};

use super::abi::{Code, DevicePointer};
use super::arena::{Block, BlockLocator};
use super::device::{self, Device};
use super::pool::Pool;
use super::stream::Stream;
use crate::settings;

/// Allocations by their first address.
static ALLOCATIONS: RwLock<BTreeMap<usize, Arc<Allocation>>> = RwLock::new(BTreeMap::new());

/// Fill byte of fresh memory.
pub(crate) const FRESH_FILL_BYTE: u8 = 0xA5;

/// An allocation. Its memory lives as long as some work refers to it, even after it was freed.
pub(crate) struct Allocation {
    block: Block,
    device: &'static Device,
    /// The device that has opened the memory, if it belongs to another process.
    opener: Option<&'static Device>,
    /// The pool of the allocation, if any.
    pool: Option<Arc<Pool>>,
    kind: Kind,
    /// Whether its bytes count as used memory of the device.
    is_counted: AtomicBool,
    /// Whether this process has neither freed nor closed it.
    is_live: AtomicBool,
    /// Number of allocations of its pool at the time of the free.
    allocations_at_free: AtomicU64,
}

/// HIP's kinds of memory, by their coherence with other devices. Memory of CUDA is coarse-grained.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// Coarse-grained: a running kernel may not see writes of other devices.
    Coarse,
    /// Fine-grained: a running kernel sees writes of other devices.
    Fine,
    /// Signal memory: one fine-grained word that all devices of the process can access.
    Signal,
}

/// Bytes of one allocation.
#[derive(Clone)]
pub(crate) struct Span {
    allocation: Arc<Allocation>,
    address: usize,
    bytes: usize,
}

/// Allocates coarse-grained memory.
pub(crate) fn allocate(device: &'static Device, bytes: usize) -> Result<DevicePointer, Code> {
    allocate_as(device, bytes, Kind::Coarse)
}

/// Allocates memory of a kind.
pub(crate) fn allocate_as(device: &'static Device, bytes: usize, kind: Kind) -> Result<DevicePointer, Code> {
    make(device, bytes, kind, None)
}

/// Allocates from a pool.
pub(crate) fn allocate_from(device: &'static Device, bytes: usize, pool: Arc<Pool>) -> Result<DevicePointer, Code> {
    make(device, bytes, Kind::Coarse, Some(pool))
}

fn make(device: &'static Device, bytes: usize, kind: Kind, pool: Option<Arc<Pool>>) -> Result<DevicePointer, Code> {
    if bytes == 0 {
        return Err(Code::INVALID_VALUE);
    }
    let total = settings::read().memory();
    let add = |used: usize| used.checked_add(bytes).filter(|&used| used <= total);
    device.used.fetch_update(SeqCst, SeqCst, add).map_err(|_| Code::OUT_OF_MEMORY)?;
    let Some(block) = device.arena().and_then(|arena| arena.allocate(bytes)) else {
        device.used.fetch_sub(bytes, SeqCst);
        return Err(Code::OUT_OF_MEMORY);
    };
    // SAFETY: the block was just allocated with `bytes` bytes.
    unsafe { block.base().write_bytes(FRESH_FILL_BYTE, bytes) };
    if let Some(pool) = &pool {
        pool.count_allocation(bytes);
    }
    let (is_counted, is_live) = (AtomicBool::new(true), AtomicBool::new(true));
    let allocations_at_free = AtomicU64::new(0);
    Ok(insert(Allocation { block, device, opener: None, pool, kind, is_counted, is_live, allocations_at_free }))
}

/// Registers opened memory of another process. Its kind is unknown here; fine-grained memory is assumed, for which no
/// access is refused.
pub(crate) fn adopt(block: Block, device: &'static Device, opener: &'static Device) -> DevicePointer {
    let (is_counted, is_live) = (AtomicBool::new(false), AtomicBool::new(true));
    let (kind, allocations_at_free) = (Kind::Fine, AtomicU64::new(0));
    insert(Allocation {
        block,
        device,
        opener: Some(opener),
        pool: None,
        kind,
        is_counted,
        is_live,
        allocations_at_free,
    })
}

/// Waits for all work that is submitted now to the device and its peers, and frees. An allocation is freed even if the
/// device has failed.
pub(crate) fn free(pointer: DevicePointer) -> Result<(), Code> {
    if pointer == 0 {
        return Ok(());
    }
    let found = ALLOCATIONS.read().unwrap_or_else(PoisonError::into_inner).get(&(pointer as usize)).cloned();
    let device = found.filter(|found| found.opener.is_none()).ok_or(Code::INVALID_VALUE)?.device;
    let outcome = device.synchronize_with_peers();
    let allocation = remove(pointer).ok_or(Code::INVALID_VALUE)?;
    allocation.release_bytes();
    allocation.block.retire();
    outcome
}

/// Frees memory of a pool when the stream reaches the free. The bytes are available for other allocations at once.
pub(crate) fn free_async(pointer: DevicePointer, stream: &Stream) -> Result<(), Code> {
    if let Some(capture) = stream.capture.current() {
        return capture.free(stream, pointer);
    }
    let found = ALLOCATIONS.read().unwrap_or_else(PoisonError::into_inner).get(&(pointer as usize)).cloned();
    let allocation = found.filter(|found| found.pool.is_some()).ok_or(Code::INVALID_VALUE)?;
    if !allocation.release_bytes() {
        return Err(Code::INVALID_VALUE);
    }
    // Later allocations of the pool may reuse the bytes.
    allocation.allocations_at_free.store(allocation.pool.as_ref().map_or(0, |pool| pool.allocations()), SeqCst);
    stream.push(Box::new(move || {
        if let Some(allocation) = remove(pointer) {
            allocation.block.retire();
        }
        Ok(())
    }));
    Ok(())
}

/// Frees memory of a pool that no later work uses.
pub(crate) fn discard(pointer: DevicePointer) {
    if let Some(allocation) = remove(pointer) {
        allocation.release_bytes();
        allocation.block.retire();
    }
}

/// Removes an allocation. Work that still refers to it fails.
pub(crate) fn remove(pointer: DevicePointer) -> Option<Arc<Allocation>> {
    let allocation = ALLOCATIONS.write().unwrap_or_else(PoisonError::into_inner).remove(&(pointer as usize))?;
    allocation.is_live.store(false, SeqCst);
    Some(allocation)
}

fn insert(allocation: Allocation) -> DevicePointer {
    let address = allocation.block.base().expose_provenance().get();
    ALLOCATIONS.write().unwrap_or_else(PoisonError::into_inner).insert(address, Arc::new(allocation));
    address as DevicePointer
}

/// Number of allocations of this process.
pub(crate) fn live() -> usize {
    let allocations = ALLOCATIONS.read().unwrap_or_else(PoisonError::into_inner);
    allocations.values().filter(|allocation| allocation.opener.is_none()).count()
}

/// Number of unused bytes of a device.
pub(crate) fn unused(device: &Device) -> usize {
    settings::read().memory().saturating_sub(device.used.load(SeqCst))
}

impl Allocation {
    /// Stops to count the bytes as used. Returns false if they were not counted any more.
    fn release_bytes(&self) -> bool {
        let was_counted = self.is_counted.swap(false, SeqCst);
        if was_counted {
            self.device.used.fetch_sub(self.block.bytes(), SeqCst);
            if let Some(pool) = &self.pool {
                pool.count_free(self.block.bytes());
            }
        }
        was_counted
    }
}

impl Span {
    /// A span of bytes at an address, all in one allocation.
    pub(crate) fn find(address: usize, bytes: usize) -> Option<Self> {
        let allocations = ALLOCATIONS.read().unwrap_or_else(PoisonError::into_inner);
        let (&base, allocation) = allocations.range(..=address).next_back()?;
        let end = (address - base).checked_add(bytes)?;
        let is_inside = end <= allocation.block.bytes() && address - base < allocation.block.bytes();
        is_inside.then(|| Self { allocation: Arc::clone(allocation), address, bytes })
    }

    /// A span of a whole block of another process, which only this span refers to: addresses in it are not device
    /// pointers.
    pub(crate) fn of_block(block: Block, device: &'static Device) -> Self {
        let (address, bytes) = (block.base().addr().get(), block.bytes());
        let (is_counted, is_live) = (AtomicBool::new(false), AtomicBool::new(true));
        let (kind, allocations_at_free) = (Kind::Fine, AtomicU64::new(0));
        let allocation = Allocation {
            block,
            device,
            opener: Some(device),
            pool: None,
            kind,
            is_counted,
            is_live,
            allocations_at_free,
        };
        Self { allocation: Arc::new(allocation), address, bytes }
    }

    /// The allocation's block.
    pub(crate) fn block(&self) -> &Block {
        &self.allocation.block
    }

    /// The span at a device pointer that is an argument of an export, on any device.
    pub(crate) fn of(pointer: DevicePointer, bytes: usize) -> Result<Self, Code> {
        device::all()?;
        Self::find(pointer as usize, bytes).ok_or(Code::INVALID_VALUE)
    }

    /// The kind of the memory.
    pub(crate) fn kind(&self) -> Kind {
        self.allocation.kind
    }

    /// The device of the memory.
    pub(crate) fn device(&self) -> &'static Device {
        self.allocation.device
    }

    /// Address of the first byte.
    pub(crate) fn address(&self) -> usize {
        self.address
    }

    /// Number of bytes.
    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    /// Whether both spans have a byte in common.
    pub(crate) fn overlaps(&self, other: &Self) -> bool {
        self.address < other.address + other.bytes && other.address < self.address + self.bytes
    }

    /// Whether the memory belongs to another process.
    pub(crate) fn is_foreign(&self) -> bool {
        self.allocation.opener.is_some()
    }

    /// Checks that the allocation was neither freed nor closed.
    pub(crate) fn check(&self) -> Result<(), Code> {
        let is_live = self.allocation.is_live.load(SeqCst) && self.allocation.block.is_live();
        if is_live { Ok(()) } else { Err(Code::ILLEGAL_ADDRESS) }
    }

    /// Like [`Span::check`], for a kernel that still runs after the free: freed memory of a pool is accessible until
    /// the pool makes another allocation.
    pub(crate) fn check_late(&self) -> Result<(), Code> {
        let is_unused = |pool: &Arc<Pool>| pool.allocations() == self.allocation.allocations_at_free.load(SeqCst);
        self.check()
            .or_else(|code| if self.allocation.pool.as_ref().is_some_and(is_unused) { Ok(()) } else { Err(code) })
    }

    /// Checks that work of a device can access the memory: its own memory, memory of peers to which it has access, and
    /// memory that it has opened.
    pub(crate) fn check_access(&self, from: &Device) -> Result<(), Code> {
        let is_reached = match self.allocation.opener {
            Some(opener) => opener.ordinal == from.ordinal,
            None if self.allocation.kind == Kind::Signal => true,
            None if self.allocation.pool.is_some() => !self.is_closed_to(from.ordinal),
            None => self.device().ordinal == from.ordinal || from.peers.have(self.device()),
        };
        if is_reached { Ok(()) } else { Err(Code::ILLEGAL_ADDRESS) }
    }

    /// Whether the memory is in a pool to which a device has no access.
    pub(crate) fn is_closed_to(&self, ordinal: usize) -> bool {
        let pool = self.allocation.pool.as_ref();
        pool.is_some_and(|pool| ordinal != self.device().ordinal && !pool.is_open_to(ordinal))
    }

    /// The locator of the allocation for other processes, and the offset of this span in it.
    pub(crate) fn locator(&self) -> Option<(BlockLocator, usize)> {
        // Memory of a pool can't be shared by this kind of handle, and signal memory can't be shared at all.
        self.allocation
            .block
            .locator()
            .filter(|_| self.allocation.pool.is_none() && self.allocation.kind != Kind::Signal)
            .map(|place| (place, self.address - self.base()))
    }

    /// Whether the memory is allocated on a device by this process.
    pub(crate) fn is_of(&self, device: &Device) -> bool {
        self.allocation.opener.is_none() && self.device().ordinal == device.ordinal
    }

    /// Whether the span is memory of a pool.
    pub(crate) fn is_in_pool(&self) -> bool {
        self.allocation.pool.is_some()
    }

    /// The words of the span, which other threads and processes may change at any time. Empty if the span is not
    /// aligned.
    pub(crate) fn words(&self) -> &[AtomicU32] {
        if !self.address.is_multiple_of(4) {
            return &[];
        }
        // SAFETY: the words are aligned and inside the allocation, which lives as long as the span.
        unsafe { slice::from_raw_parts(self.pointer().cast(), self.bytes / 4) }
    }

    /// A copy of the bytes.
    pub(crate) fn to_vec(&self) -> Vec<u8> {
        let mut bytes = vec![0; self.bytes];
        // SAFETY: the vector has `self.bytes` bytes.
        unsafe { self.copy_to(bytes.as_mut_ptr()) };
        bytes
    }

    /// Writes bytes to the start of the span. `from` is not longer than the span.
    pub(crate) fn write(&self, from: &[u8]) {
        debug_assert!(from.len() <= self.bytes, "the source is longer than the span");
        let bytes = from.len().min(self.bytes);
        // SAFETY: both ranges have at least `bytes` bytes.
        unsafe { ptr::copy(from.as_ptr(), self.pointer(), bytes) };
    }

    /// Fills the span with a byte.
    pub(crate) fn fill(&self, byte: u8) {
        // SAFETY: the span has `self.bytes` bytes.
        unsafe { ptr::write_bytes(self.pointer(), byte, self.bytes) };
    }

    /// Copies the whole span.
    ///
    /// # Safety
    /// `to` has room for all bytes of the span.
    pub(crate) unsafe fn copy_to(&self, to: *mut u8) {
        // SAFETY: the span has `self.bytes` bytes, and the caller guarantees room for them.
        unsafe { ptr::copy(self.pointer(), to, self.bytes) };
    }

    /// All bytes of the span's allocation.
    pub(crate) fn whole(&self) -> Self {
        let (address, bytes) = (self.base(), self.allocation.block.bytes());
        Self { allocation: Arc::clone(&self.allocation), address, bytes }
    }

    /// The part of the span at an offset, cut at the end of the span.
    pub(crate) fn part(&self, offset: usize, bytes: usize) -> Self {
        let offset = offset.min(self.bytes);
        let bytes = bytes.min(self.bytes - offset);
        Self { allocation: Arc::clone(&self.allocation), address: self.address + offset, bytes }
    }

    fn pointer(&self) -> *mut u8 {
        self.allocation.block.base().as_ptr().wrapping_add(self.address - self.base())
    }

    /// Address of the first byte of the allocation.
    pub(crate) fn base(&self) -> usize {
        self.allocation.block.base().addr().get()
    }
}
