//! Pinned host memory, which copies and kernels access when their stream runs them.

#![allow(unsafe_code)]

use std::alloc::{self, Layout};
use std::collections::BTreeMap;
use std::ffi::c_void;
use std::ptr::NonNull;
use std::sync::atomic::AtomicU32;
use std::sync::{Arc, Mutex};

use super::abi::Code;
use crate::sync::lock;

/// Allocations by their first address.
static ALLOCATIONS: Mutex<BTreeMap<usize, Arc<Allocation>>> = Mutex::new(BTreeMap::new());

struct Allocation {
    base: NonNull<u8>,
    layout: Layout,
}

// SAFETY: this module accesses the memory only by atomic words.
unsafe impl Send for Allocation {}
// SAFETY: this module accesses the memory only by atomic words.
unsafe impl Sync for Allocation {}

/// A word of pinned memory. The memory lives as long as this value.
pub(crate) struct Word {
    allocation: Arc<Allocation>,
    offset: usize,
}

/// Allocates pinned memory.
pub(crate) fn allocate(bytes: usize) -> Result<*mut c_void, Code> {
    let layout = Layout::from_size_align(bytes, 4096).map_err(|_| Code::OUT_OF_MEMORY)?;
    if bytes == 0 {
        return Err(Code::INVALID_VALUE);
    }
    // SAFETY: the size of the layout is not 0.
    let base = NonNull::new(unsafe { alloc::alloc(layout) }).ok_or(Code::OUT_OF_MEMORY)?;
    lock(&ALLOCATIONS).insert(base.addr().get(), Arc::new(Allocation { base, layout }));
    Ok(base.as_ptr().cast())
}

/// Frees pinned memory.
pub(crate) fn free(pointer: *mut c_void) -> Result<(), Code> {
    lock(&ALLOCATIONS).remove(&pointer.addr()).map(drop).ok_or(Code::INVALID_VALUE)
}

/// Whether all these bytes are in one pinned allocation.
pub(crate) fn holds(pointer: *const c_void, bytes: usize) -> bool {
    find(pointer.addr(), bytes).is_some()
}

/// The word at an address.
pub(crate) fn word(address: usize) -> Option<Word> {
    let (allocation, offset) = find(address, 4)?;
    offset.is_multiple_of(4).then_some(Word { allocation, offset })
}

/// Number of allocations.
pub(crate) fn live() -> usize {
    lock(&ALLOCATIONS).len()
}

fn find(address: usize, bytes: usize) -> Option<(Arc<Allocation>, usize)> {
    let allocations = lock(&ALLOCATIONS);
    let (base, allocation) = allocations.range(..=address).next_back()?;
    let is_inside = address.checked_add(bytes)? <= base + allocation.layout.size();
    is_inside.then(|| (Arc::clone(allocation), address - base))
}

impl Word {
    /// The word, which the host may write at any time.
    pub(crate) fn atomic(&self) -> &AtomicU32 {
        // SAFETY: the offset of the word is inside the allocation.
        let word = unsafe { self.allocation.base.add(self.offset) };
        // SAFETY: the word is aligned, and its allocation lives as long as `self`.
        unsafe { AtomicU32::from_ptr(word.as_ptr().cast()) }
    }
}

impl Drop for Allocation {
    fn drop(&mut self) {
        // SAFETY: the memory was allocated with this layout, and the table no longer refers to it.
        unsafe { alloc::dealloc(self.base.as_ptr(), self.layout) };
    }
}
