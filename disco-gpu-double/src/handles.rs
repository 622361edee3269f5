//! Opaque handles: numbers that stand for what the double keeps. A stale or a made-up handle is found out, not followed.

use std::collections::BTreeMap;
use std::ffi::c_void;
use std::ptr;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, PoisonError, RwLock};

/// A table of handles of one kind. No handle is given out twice.
pub(crate) struct Handles<T> {
    table: RwLock<BTreeMap<usize, Arc<T>>>,
    next: AtomicUsize,
}

/// Handles differ by as much as addresses would.
const STRIDE: usize = 0x10;

impl<T> Handles<T> {
    /// An empty table, whose first handle is `first`.
    pub(crate) const fn new(first: usize) -> Self {
        Self { table: RwLock::new(BTreeMap::new()), next: AtomicUsize::new(first) }
    }

    /// A new handle.
    pub(crate) fn insert(&self, value: Arc<T>) -> *mut c_void {
        let handle = self.next.fetch_add(STRIDE, Relaxed);
        self.table.write().unwrap_or_else(PoisonError::into_inner).insert(handle, value);
        ptr::without_provenance_mut(handle)
    }

    /// What the handle stands for.
    pub(crate) fn find(&self, handle: *mut c_void) -> Option<Arc<T>> {
        self.table.read().unwrap_or_else(PoisonError::into_inner).get(&handle.addr()).cloned()
    }

    /// Ends a handle.
    pub(crate) fn remove(&self, handle: *mut c_void) -> Option<Arc<T>> {
        self.table.write().unwrap_or_else(PoisonError::into_inner).remove(&handle.addr())
    }

    /// All that have a handle.
    pub(crate) fn all(&self) -> Vec<Arc<T>> {
        self.table.read().unwrap_or_else(PoisonError::into_inner).values().cloned().collect()
    }

    /// How many handles there are.
    pub(crate) fn len(&self) -> usize {
        self.table.read().unwrap_or_else(PoisonError::into_inner).len()
    }
}
