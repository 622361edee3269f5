//! Memory of the host that the driver has allocated, which copies touch when their stream comes to them.

#![allow(unsafe_code)]

use std::alloc::{self, Layout};
use std::collections::BTreeMap;
use std::ffi::c_void;
use std::sync::Mutex;

use super::abi::Code;
use crate::sync::lock;

/// Sizes by address.
static ALLOCATIONS: Mutex<BTreeMap<usize, Layout>> = Mutex::new(BTreeMap::new());

/// Allocates.
pub(crate) fn allocate(bytes: usize) -> Result<*mut c_void, Code> {
    let layout = Layout::from_size_align(bytes, 4096).map_err(|_| Code::OUT_OF_MEMORY)?;
    if bytes == 0 {
        return Err(Code::INVALID_VALUE);
    }
    // SAFETY: the layout has bytes.
    let pointer = unsafe { alloc::alloc(layout) };
    if pointer.is_null() {
        return Err(Code::OUT_OF_MEMORY);
    }
    lock(&ALLOCATIONS).insert(pointer.addr(), layout);
    Ok(pointer.cast())
}

/// Frees.
pub(crate) fn free(pointer: *mut c_void) -> Result<(), Code> {
    let layout = lock(&ALLOCATIONS).remove(&pointer.addr()).ok_or(Code::INVALID_VALUE)?;
    // SAFETY: it was allocated with this layout, and is known no more.
    unsafe { alloc::dealloc(pointer.cast(), layout) };
    Ok(())
}

/// Whether all these bytes are such.
pub(crate) fn holds(pointer: *const c_void, bytes: usize) -> bool {
    let allocations = lock(&ALLOCATIONS);
    let found = allocations.range(..=pointer.addr()).next_back();
    found.is_some_and(|(base, layout)| pointer.addr() + bytes <= base + layout.size())
}

/// How many there are.
pub(crate) fn live() -> usize {
    lock(&ALLOCATIONS).len()
}
