//! Allocations of device memory, which is host memory, of this and other processes. Fresh memory is filled with 0xA5,
//! not zeros.

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

/// By first address.
static ALLOCATIONS: RwLock<BTreeMap<usize, Arc<Allocation>>> = RwLock::new(BTreeMap::new());

/// Fill byte of fresh memory.
const FRESH_FILL_BYTE: u8 = 0xA5;

/// An allocation. Its memory lives as long as some work refers to it, even after it was freed.
pub(crate) struct Allocation {
    block: Block,
    device: &'static Device,
    /// The device that has opened it, if it is another process's.
    opener: Option<&'static Device>,
    /// The pool that it was allocated from, if any.
    pool: Option<Arc<Pool>>,
    kind: Kind,
    /// Its bytes count as used.
    is_counted: AtomicBool,
    /// Neither freed nor closed by this process.
    is_live: AtomicBool,
    /// How many allocations its pool had made when it was freed.
    allocations_at_free: AtomicU64,
}

/// HIP's kinds of memory, by their coherence with other devices. CUDA's memory is of the first kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// A kernel that runs need not see what another device writes.
    Coarse,
    /// A kernel that runs sees it.
    Fine,
    /// The same, for one word, on all devices of the process.
    Signal,
}

/// Bytes of one allocation.
#[derive(Clone)]
pub(crate) struct Span {
    allocation: Arc<Allocation>,
    address: usize,
    bytes: usize,
}

/// Allocates.
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
    // SAFETY: all of it was allocated just now.
    unsafe { block.base().write_bytes(FRESH_FILL_BYTE, bytes) };
    if let Some(pool) = &pool {
        pool.count_allocation(bytes);
    }
    let (is_counted, is_live) = (AtomicBool::new(true), AtomicBool::new(true));
    let allocations_at_free = AtomicU64::new(0);
    Ok(insert(Allocation { block, device, opener: None, pool, kind, is_counted, is_live, allocations_at_free }))
}

/// Has memory of another process, on a device of its. Its kind is not known here, so that nothing is refused for it.
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

/// Frees, after all that the device and its peers have to do now. An allocation is freed even if the device has failed.
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

/// Frees memory of a pool when a stream comes to it. Others may have the bytes at once, as in a pool.
pub(crate) fn free_async(pointer: DevicePointer, stream: &Stream) -> Result<(), Code> {
    stream.capture.refuse()?;
    let found = ALLOCATIONS.read().unwrap_or_else(PoisonError::into_inner).get(&(pointer as usize)).cloned();
    let allocation = found.filter(|found| found.pool.is_some()).ok_or(Code::INVALID_VALUE)?;
    if !allocation.release_bytes() {
        return Err(Code::INVALID_VALUE);
    }
    // What the stream allocates after this may have the bytes.
    allocation.allocations_at_free.store(allocation.pool.as_ref().map_or(0, |pool| pool.allocations()), SeqCst);
    stream.push(Box::new(move || {
        if let Some(allocation) = remove(pointer) {
            allocation.block.retire();
        }
        Ok(())
    }));
    Ok(())
}

/// Has memory no longer. Work that has it yet fails.
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

/// Bytes free of a device.
pub(crate) fn unused(device: &Device) -> usize {
    settings::read().memory().saturating_sub(device.used.load(SeqCst))
}

impl Allocation {
    /// Its bytes are free for others. False: they were before.
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

    /// All of a block of another process that only this span has: no address in it is a device pointer.
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

    /// The same for a device pointer that a function was given, on any device.
    pub(crate) fn of(pointer: DevicePointer, bytes: usize) -> Result<Self, Code> {
        device::all()?;
        Self::find(pointer as usize, bytes).ok_or(Code::INVALID_VALUE)
    }

    /// Which kind of memory it is.
    pub(crate) fn kind(&self) -> Kind {
        self.allocation.kind
    }

    /// The device of the memory.
    pub(crate) fn device(&self) -> &'static Device {
        self.allocation.device
    }

    /// Where it begins.
    pub(crate) fn address(&self) -> usize {
        self.address
    }

    /// How many bytes there are.
    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    /// Whether they have a byte in common.
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

    /// As [`Span::check`] for a kernel that goes on after the free: memory of a pool is still there, until the pool
    /// gives it out again.
    pub(crate) fn check_late(&self) -> Result<(), Code> {
        let is_unused = |pool: &Arc<Pool>| pool.allocations() == self.allocation.allocations_at_free.load(SeqCst);
        self.check()
            .or_else(|code| if self.allocation.pool.as_ref().is_some_and(is_unused) { Ok(()) } else { Err(code) })
    }

    /// Whether what a device runs may touch it: its own memory, that of peers to which it has access, and what it has
    /// opened.
    pub(crate) fn check_access(&self, from: &Device) -> Result<(), Code> {
        let is_reached = match self.allocation.opener {
            Some(opener) => opener.ordinal == from.ordinal,
            None if self.allocation.kind == Kind::Signal => true,
            None if self.allocation.pool.is_some() => !self.is_closed_to(from.ordinal),
            None => self.device().ordinal == from.ordinal || from.peers.have(self.device()),
        };
        if is_reached { Ok(()) } else { Err(Code::ILLEGAL_ADDRESS) }
    }

    /// Whether it is of a pool to which a device has no access.
    pub(crate) fn is_closed_to(&self, ordinal: usize) -> bool {
        let pool = self.allocation.pool.as_ref();
        pool.is_some_and(|pool| ordinal != self.device().ordinal && !pool.is_open_to(ordinal))
    }

    /// Where other processes find the allocation, and how far in it this begins.
    pub(crate) fn locator(&self) -> Option<(BlockLocator, usize)> {
        // Memory of a pool can't be shared by this kind of handle, and signal memory can't be shared at all.
        self.allocation
            .block
            .locator()
            .filter(|_| self.allocation.pool.is_none() && self.allocation.kind != Kind::Signal)
            .map(|place| (place, self.address - self.base()))
    }

    /// Whether it is a device's own memory, of this process.
    pub(crate) fn is_of(&self, device: &Device) -> bool {
        self.allocation.opener.is_none() && self.device().ordinal == device.ordinal
    }

    /// Its words, which others change at any time. None, where it is not aligned.
    pub(crate) fn words(&self) -> &[AtomicU32] {
        if !self.address.is_multiple_of(4) {
            return &[];
        }
        // SAFETY: they are aligned, all in the allocation, and stay for as long as the span does.
        unsafe { slice::from_raw_parts(self.pointer().cast(), self.bytes / 4) }
    }

    /// The bytes.
    pub(crate) fn to_vec(&self) -> Vec<u8> {
        let mut bytes = vec![0; self.bytes];
        // SAFETY: so many bytes are in the vector.
        unsafe { self.copy_to(bytes.as_mut_ptr()) };
        bytes
    }

    /// Writes bytes, as many as there are in `from`, which are no more than there are here.
    pub(crate) fn write(&self, from: &[u8]) {
        debug_assert!(from.len() <= self.bytes, "more than there is room for");
        let bytes = from.len().min(self.bytes);
        // SAFETY: both have so many bytes.
        unsafe { ptr::copy(from.as_ptr(), self.pointer(), bytes) };
    }

    /// Fills it.
    pub(crate) fn fill(&self, byte: u8) {
        // SAFETY: so many bytes are here.
        unsafe { ptr::write_bytes(self.pointer(), byte, self.bytes) };
    }

    /// Copies all of it.
    ///
    /// # Safety
    /// There is room for as many bytes.
    pub(crate) unsafe fn copy_to(&self, to: *mut u8) {
        // SAFETY: the span has the bytes, and the caller the room.
        unsafe { ptr::copy(self.pointer(), to, self.bytes) };
    }

    /// A part, from an offset on; shorter where the span ends before.
    pub(crate) fn part(&self, offset: usize, bytes: usize) -> Self {
        let offset = offset.min(self.bytes);
        let bytes = bytes.min(self.bytes - offset);
        Self { allocation: Arc::clone(&self.allocation), address: self.address + offset, bytes }
    }

    fn pointer(&self) -> *mut u8 {
        self.allocation.block.base().as_ptr().wrapping_add(self.address - self.base())
    }

    /// Where the allocation begins.
    pub(crate) fn base(&self) -> usize {
        self.allocation.block.base().addr().get()
    }
}
