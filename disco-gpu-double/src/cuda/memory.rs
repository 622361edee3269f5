//! Device memory: the host's, in allocations that are known. Fresh memory is full of 0xA5, never of zeros.

#![allow(unsafe_code)]

use std::alloc::{self, Layout};
use std::collections::BTreeMap;
use std::ptr::{self, NonNull};
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::sync::{Arc, PoisonError, RwLock};

use super::abi::{Code, DevicePointer};
use super::device::{self, Device};
use crate::settings;

/// By first address.
static ALLOCATIONS: RwLock<BTreeMap<usize, Arc<Allocation>>> = RwLock::new(BTreeMap::new());

/// What CUDA aligns allocations to, at least.
const ALIGNMENT: usize = 512;
/// What fresh memory is full of.
const FRESH: u8 = 0xA5;

/// One allocation. Its memory stays for as long as some work has it, freed or not.
pub(crate) struct Allocation {
    base: NonNull<u8>,
    layout: Layout,
    device: &'static Device,
    is_live: AtomicBool,
}

// SAFETY: the memory belongs to the allocation, and is only copied from and to.
unsafe impl Send for Allocation {}
// SAFETY: as above; who copies at the same time as another gets bytes of either, as on a device.
unsafe impl Sync for Allocation {}

/// Bytes of one allocation.
#[derive(Clone)]
pub(crate) struct Span {
    allocation: Arc<Allocation>,
    address: usize,
    bytes: usize,
}

/// Allocates.
pub(crate) fn allocate(device: &'static Device, bytes: usize) -> Result<DevicePointer, Code> {
    if bytes == 0 {
        return Err(Code::INVALID_VALUE);
    }
    let total = settings::read().memory();
    let more = |used: usize| used.checked_add(bytes).filter(|&used| used <= total);
    device.used.fetch_update(SeqCst, SeqCst, more).map_err(|_| Code::OUT_OF_MEMORY)?;
    let layout = Layout::from_size_align(bytes, ALIGNMENT).map_err(|_| Code::OUT_OF_MEMORY)?;
    // SAFETY: the layout has bytes.
    let base = NonNull::new(unsafe { alloc::alloc(layout) }).ok_or(Code::OUT_OF_MEMORY)?;
    // SAFETY: all of it was allocated just now.
    unsafe { base.write_bytes(FRESH, bytes) };
    let allocation = Allocation { base, layout, device, is_live: AtomicBool::new(true) };
    let address = base.addr().get();
    ALLOCATIONS.write().unwrap_or_else(PoisonError::into_inner).insert(address, Arc::new(allocation));
    Ok(address as DevicePointer)
}

/// Frees, after all that the device has to do now. An allocation is freed even if the device has failed.
pub(crate) fn free(pointer: DevicePointer) -> Result<(), Code> {
    if pointer == 0 {
        return Ok(());
    }
    let address = pointer as usize;
    let found = ALLOCATIONS.read().unwrap_or_else(PoisonError::into_inner).get(&address).cloned();
    let device = found.ok_or(Code::INVALID_VALUE)?.device;
    let outcome = device.synchronize();
    let allocation = ALLOCATIONS.write().unwrap_or_else(PoisonError::into_inner).remove(&address);
    let allocation = allocation.ok_or(Code::INVALID_VALUE)?;
    allocation.is_live.store(false, SeqCst);
    device.used.fetch_sub(allocation.layout.size(), SeqCst);
    outcome
}

/// How many allocations there are.
pub(crate) fn live() -> usize {
    ALLOCATIONS.read().unwrap_or_else(PoisonError::into_inner).len()
}

/// Bytes free of a device.
pub(crate) fn unused(device: &Device) -> usize {
    settings::read().memory().saturating_sub(device.used.load(SeqCst))
}

impl Drop for Allocation {
    fn drop(&mut self) {
        // SAFETY: it was allocated with this layout, and nobody has it any more.
        unsafe { alloc::dealloc(self.base.as_ptr(), self.layout) };
    }
}

impl Span {
    /// Some bytes from an address on, all in one allocation.
    pub(crate) fn find(address: usize, bytes: usize) -> Option<Self> {
        let allocations = ALLOCATIONS.read().unwrap_or_else(PoisonError::into_inner);
        let (&base, allocation) = allocations.range(..=address).next_back()?;
        let end = (address - base).checked_add(bytes)?;
        let is_inside = end <= allocation.layout.size() && address - base < allocation.layout.size();
        is_inside.then(|| Self { allocation: Arc::clone(allocation), address, bytes })
    }

    /// The same for a device pointer that a function was given, on any device.
    pub(crate) fn of(pointer: DevicePointer, bytes: usize) -> Result<Self, Code> {
        device::all()?;
        Self::find(pointer as usize, bytes).ok_or(Code::INVALID_VALUE)
    }

    /// Whose memory it is.
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

    /// Whether the allocation has not been freed since.
    pub(crate) fn check(&self) -> Result<(), Code> {
        if self.allocation.is_live.load(SeqCst) { Ok(()) } else { Err(Code::ILLEGAL_ADDRESS) }
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
        self.allocation.base.as_ptr().wrapping_add(self.address - self.allocation.base.addr().get())
    }
}
