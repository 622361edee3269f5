//! The pool from which `cuMemAllocAsync`, and so a program, allocates on a device.

#![allow(unsafe_code)]

use std::ffi::c_int;

use cudarc::driver::result;
use cudarc::driver::sys::{self, CUmemPool_attribute as Attribute, CUresult};
use disco_core::Result;

use super::attributes::{accessors, device_of};
use super::driver;
use super::error::check;

/// `CUmemAccessDesc`, whose fields have other names in the bindings of CUDA 13.2 and later.
#[repr(C)]
struct Access {
    kind: c_int,
    id: c_int,
    flags: c_int,
}

const LOCATION_DEVICE: c_int = sys::CUmemLocationType::CU_MEM_LOCATION_TYPE_DEVICE as c_int;
const ACCESS_READ_WRITE: c_int = sys::CUmemAccess_flags::CU_MEM_ACCESS_FLAGS_PROT_READWRITE as c_int;
const _: () = assert!(size_of::<Access>() == size_of::<sys::CUmemAccessDesc>());

/// Prepares the pool from which `cuMemAllocAsync` allocates on a device, for programs that allocate memory for each
/// operation, as candle does. The pool keeps freed memory, which it otherwise returns to the system at each
/// synchronisation. And an allocation never waits for memory that another stream is about to free: the work of that stream
/// may be a collective that waits for this rank, if ranks share the device. Does nothing if the device has no pools.
///
/// # Errors
/// There is no such device; errors of the driver.
pub fn keep_pool_memory(ordinal: i32) -> Result<()> {
    let Some(pool) = default_pool(ordinal)? else { return Ok(()) };
    let (mut threshold, mut off) = (u64::MAX, 0i32);
    let set = |attribute, value| {
        // SAFETY: the device's pool exists, and `value` points to the type of the attribute.
        let set = unsafe { sys::cuMemPoolSetAttribute(pool, attribute, value) };
        check("cuMemPoolSetAttribute", set.result())
    };
    set(Attribute::CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, (&raw mut threshold).cast())?;
    set(Attribute::CU_MEMPOOL_ATTR_REUSE_ALLOW_INTERNAL_DEPENDENCIES, (&raw mut off).cast())
}

/// Bytes of freed memory that the pool of a device keeps, and that the driver counts as used. 0 if the device has no pools.
///
/// # Errors
/// There is no such device; errors of the driver.
pub fn unused_pool_memory(ordinal: i32) -> Result<u64> {
    let Some(pool) = default_pool(ordinal)? else { return Ok(0) };
    let get = |attribute| {
        let mut bytes = 0u64;
        // SAFETY: the device's pool exists, and the attribute has 64 bits.
        let got = unsafe { sys::cuMemPoolGetAttribute(pool, attribute, (&raw mut bytes).cast()) };
        check("cuMemPoolGetAttribute", got.result()).map(|()| bytes)
    };
    let reserved = get(Attribute::CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT)?;
    Ok(reserved.saturating_sub(get(Attribute::CU_MEMPOOL_ATTR_USED_MEM_CURRENT)?))
}

/// Gives the other devices access to the pool of a device. Does nothing if the device has no pools.
pub(super) fn open_pool_to_accessors(ordinal: i32) -> Result<()> {
    let Some(pool) = default_pool(ordinal)? else { return Ok(()) };
    let access = |id| Access { kind: LOCATION_DEVICE, id, flags: ACCESS_READ_WRITE };
    let all: Vec<_> = accessors(ordinal).into_iter().map(access).collect();
    if all.is_empty() {
        return Ok(());
    }
    // SAFETY: the device's pool exists, and `all` has `all.len()` descriptions.
    check("cuMemPoolSetAccess", unsafe { sys::cuMemPoolSetAccess(pool, all.as_ptr().cast(), all.len()) }.result())
}

/// The pool of a device; none if the device has no pools, or the driver lacks their functions.
fn default_pool(ordinal: i32) -> Result<Option<sys::CUmemoryPool>> {
    if driver::require(driver::DEFAULT_POOL_FUNCTIONS).is_err() {
        return Ok(None);
    }
    // SAFETY: the driver has just returned the device.
    match unsafe { result::device::get_mem_pool(device_of(ordinal)?) } {
        Err(error) if error.0 == CUresult::CUDA_ERROR_NOT_SUPPORTED => Ok(None),
        pool => check("cuDeviceGetMemPool", pool).map(Some),
    }
}
