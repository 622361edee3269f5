//! Opaque handles: numbers that identify objects in a table. A stale or invalid handle is detected and never
//! dereferenced.

use std::collections::BTreeMap;
use std::ffi::c_void;
use std::ptr;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, PoisonError, RwLock};

/// A table of handles of one kind. Handles are never reused.
pub(crate) struct Handles<T> {
    table: RwLock<BTreeMap<usize, Arc<T>>>,
    next: AtomicUsize,
}

/// Distance between handles, like that of addresses.
const STRIDE: usize = 0x10;

impl<T> Handles<T> {
    /// An empty table, whose first handle is `first`.
    pub(crate) const fn new(first: usize) -> Self {
        Self { table: RwLock::new(BTreeMap::new()), next: AtomicUsize::new(first) }
    }

    /// Creates a handle.
    pub(crate) fn insert(&self, value: Arc<T>) -> *mut c_void {
        let handle = self.next.fetch_add(STRIDE, Relaxed);
        self.table.write().unwrap_or_else(PoisonError::into_inner).insert(handle, value);
        ptr::without_provenance_mut(handle)
    }

    /// The object of a handle.
    pub(crate) fn find(&self, handle: *mut c_void) -> Option<Arc<T>> {
        self.table.read().unwrap_or_else(PoisonError::into_inner).get(&handle.addr()).cloned()
    }

    /// Removes a handle and returns its object.
    pub(crate) fn remove(&self, handle: *mut c_void) -> Option<Arc<T>> {
        self.table.write().unwrap_or_else(PoisonError::into_inner).remove(&handle.addr())
    }

    /// All objects in the table.
    pub(crate) fn all(&self) -> Vec<Arc<T>> {
        self.table.read().unwrap_or_else(PoisonError::into_inner).values().cloned().collect()
    }

    /// Number of handles.
    pub(crate) fn len(&self) -> usize {
        self.table.read().unwrap_or_else(PoisonError::into_inner).len()
    }
}
