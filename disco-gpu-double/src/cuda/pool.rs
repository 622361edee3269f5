//! Pools of device memory, whose allocations and frees are in the order of a stream. A free is not waited for.
//!
//! A pool takes no memory from the device but that of its live allocations: what it reserves besides is a number.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, MutexGuard};

use super::abi::{self, Code};
use super::device::Device;
use crate::handles::Handles;
use crate::sync::lock;

static POOLS: Handles<Pool> = Handles::new(0x8_0000_0000);

/// One pool.
pub(crate) struct Pool {
    device: &'static Device,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    used: usize,
    reserved: usize,
    /// Allocations so far.
    taken: u64,
    /// What stays reserved at a synchronization.
    threshold: usize,
    /// Other devices that may touch its memory.
    open_to: BTreeSet<usize>,
}

/// `cuMemPoolCreate`.
pub(crate) fn create(device: &'static Device) -> abi::Pool {
    POOLS.insert(Arc::new(Pool { device, state: Mutex::default() }))
}

/// A device's own pool, which has no handle.
pub(crate) fn of_device(device: &'static Device) -> Arc<Pool> {
    let make = || Arc::new(Pool { device, state: Mutex::default() });
    Arc::clone(device.pool.get_or_init(make))
}

/// `cuMemPoolDestroy`: what was allocated from it stays until it is freed.
pub(crate) fn destroy(handle: abi::Pool) -> Result<(), Code> {
    POOLS.remove(handle).map(drop).ok_or(Code::INVALID_VALUE)
}

/// The pool of a handle.
pub(crate) fn find(handle: abi::Pool) -> Result<Arc<Pool>, Code> {
    POOLS.find(handle).ok_or(Code::INVALID_VALUE)
}

/// A stream or a device was synchronized: pools keep no more than their thresholds.
pub(crate) fn release(device: &Device) {
    for pool in POOLS.all().into_iter().filter(|pool| pool.device.ordinal == device.ordinal) {
        let threshold = pool.state().threshold;
        pool.trim(threshold);
    }
}

/// How many pools there are.
pub(crate) fn live() -> usize {
    POOLS.len()
}

impl Pool {
    /// Where its memory is.
    pub(crate) fn device(&self) -> &'static Device {
        self.device
    }

    /// Something was allocated.
    pub(crate) fn take(&self, bytes: usize) {
        let mut state = self.state();
        state.used += bytes;
        state.taken += 1;
        state.reserved = state.reserved.max(state.used);
    }

    /// Allocations so far: each may have bytes that were free before.
    pub(crate) fn taken(&self) -> u64 {
        self.state().taken
    }

    /// Something is free again.
    pub(crate) fn give_back(&self, bytes: usize) {
        self.state().used -= bytes;
    }

    /// `cuMemPoolTrimTo`
    pub(crate) fn trim(&self, keep: usize) {
        let mut state = self.state();
        state.reserved = state.reserved.min(keep.max(state.used));
    }

    /// `CU_MEMPOOL_ATTR_RELEASE_THRESHOLD`
    pub(crate) fn set_threshold(&self, bytes: usize) {
        self.state().threshold = bytes;
    }

    /// `cuMemPoolSetAccess`
    pub(crate) fn open_to(&self, ordinal: usize) {
        self.state().open_to.insert(ordinal);
    }

    /// Whether another device may touch its memory.
    pub(crate) fn is_open_to(&self, ordinal: usize) -> bool {
        self.state().open_to.contains(&ordinal)
    }

    /// Bytes that are reserved, that are used, and that stay reserved.
    pub(crate) fn numbers(&self) -> [usize; 3] {
        let state = self.state();
        [state.reserved, state.used, state.threshold]
    }

    fn state(&self) -> MutexGuard<'_, State> {
        lock(&self.state)
    }
}
