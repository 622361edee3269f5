//! Pools of device memory, whose allocations and frees are ordered by a stream. A free does not wait.
//! Only live allocations of a pool use memory of the device. The reserved size is computed for queries only.

use std::collections::BTreeSet;
use std::ffi::c_int;
use std::ptr;
use std::sync::{Arc, Mutex, MutexGuard};

use super::abi::{self, Code};
use super::device::{self, Device};
use crate::handles::Handles;
use crate::sync::lock;

static POOLS: Handles<Pool> = Handles::new(0x8_0000_0000);

/// A pool.
pub(crate) struct Pool {
    device: &'static Device,
    state: Mutex<PoolState>,
}

#[derive(Default)]
struct PoolState {
    used: usize,
    reserved: usize,
    /// Number of allocations so far.
    allocations: u64,
    /// Number of bytes that stay reserved at a synchronization.
    threshold: usize,
    /// Other devices that can access the pool's memory.
    open_to: BTreeSet<usize>,
}

/// `cuMemPoolCreate`.
pub(crate) fn create(device: &'static Device) -> abi::Pool {
    POOLS.insert(Arc::new(Pool { device, state: Mutex::default() }))
}

/// Handles of the devices' own pools: this number and the ordinal, times the distance of handles.
const DEVICE_POOLS: usize = 0xe_0000_0000;
const STRIDE: usize = 0x10;

/// The handle of a device's own pool (`cuDeviceGetMemPool`).
pub(crate) fn handle_of_device(device: &'static Device) -> abi::Pool {
    ptr::without_provenance_mut(DEVICE_POOLS + STRIDE * device.ordinal)
}

/// A device's own pool.
pub(crate) fn of_device(device: &'static Device) -> Arc<Pool> {
    let make = || Arc::new(Pool { device, state: Mutex::default() });
    Arc::clone(device.pool.get_or_init(make))
}

/// `cuMemPoolDestroy`: allocations stay until they are freed.
pub(crate) fn destroy(handle: abi::Pool) -> Result<(), Code> {
    POOLS.remove(handle).map(drop).ok_or(Code::INVALID_VALUE)
}

/// The pool of a handle.
pub(crate) fn find(handle: abi::Pool) -> Result<Arc<Pool>, Code> {
    if let Some(offset) = handle.addr().checked_sub(DEVICE_POOLS) {
        let device = c_int::try_from(offset / STRIDE).ok().and_then(|ordinal| device::find(ordinal).ok());
        return device.map(of_device).ok_or(Code::INVALID_VALUE);
    }
    POOLS.find(handle).ok_or(Code::INVALID_VALUE)
}

/// Trims the device's pools to their thresholds, at a synchronization of a stream or the device.
pub(crate) fn release(device: &Device) {
    for pool in POOLS.all().into_iter().filter(|pool| pool.device.ordinal == device.ordinal) {
        let threshold = pool.state().threshold;
        pool.trim(threshold);
    }
}

impl Pool {
    /// The device of the pool's memory.
    pub(crate) fn device(&self) -> &'static Device {
        self.device
    }

    /// Counts an allocation.
    pub(crate) fn count_allocation(&self, bytes: usize) {
        let mut state = self.state();
        state.used += bytes;
        state.allocations += 1;
        state.reserved = state.reserved.max(state.used);
    }

    /// Number of allocations so far. Each may reuse freed bytes.
    pub(crate) fn allocations(&self) -> u64 {
        self.state().allocations
    }

    /// Counts a free.
    pub(crate) fn count_free(&self, bytes: usize) {
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

    /// Whether another device can access the pool's memory.
    pub(crate) fn is_open_to(&self, ordinal: usize) -> bool {
        self.state().open_to.contains(&ordinal)
    }

    /// Reserved bytes, used bytes, and the threshold.
    pub(crate) fn numbers(&self) -> [usize; 3] {
        let state = self.state();
        [state.reserved, state.used, state.threshold]
    }

    fn state(&self) -> MutexGuard<'_, PoolState> {
        lock(&self.state)
    }
}
