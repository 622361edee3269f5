//! Memory pools: see `crate::cuda::pool`.

#![allow(unsafe_code, reason = "C functions")]

use std::ffi::{c_int, c_void};
use std::ptr;

use super::write_output;
use crate::cuda::abi::{Access, DevicePointer, Pool, PoolProps};
use crate::cuda::exports::pool::{create, get, open, set};
use crate::cuda::{memory, pool, stream};
use crate::hip::abi::{Code, Stream};
use crate::hip::{current, last};

/// `hipError_t hipMemPoolCreate(hipMemPool_t *pool, const hipMemPoolProps *)`
#[unsafe(no_mangle)]
pub extern "C" fn hipMemPoolCreate(at: Option<&mut Pool>, props: Option<&PoolProps>) -> Code {
    last::note(current::begin_call("hipMemPoolCreate").and_then(|_| Ok(create(at, props)?)))
}

/// `hipError_t hipMemPoolDestroy(hipMemPool_t)`: does not wait.
#[unsafe(no_mangle)]
pub extern "C" fn hipMemPoolDestroy(handle: Pool) -> Code {
    last::note(pool::destroy(handle).map_err(Code::from))
}

/// `hipError_t hipMemPoolSetAttribute(hipMemPool_t, hipMemPoolAttr, void *value)`
///
/// # Safety
/// `value` is null or points to 64 bits.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hipMemPoolSetAttribute(handle: Pool, attribute: c_int, value: *const c_void) -> Code {
    // SAFETY: the caller guarantees what `# Safety` requires.
    last::note(unsafe { set(handle, attribute, value) }.map_err(Code::from))
}

/// `hipError_t hipMemPoolGetAttribute(hipMemPool_t, hipMemPoolAttr, void *value)`
///
/// # Safety
/// `value` is null or points to 64 bits.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hipMemPoolGetAttribute(handle: Pool, attribute: c_int, value: *mut c_void) -> Code {
    // SAFETY: the caller guarantees what `# Safety` requires.
    last::note(unsafe { get(handle, attribute, value) }.map_err(Code::from))
}

/// `hipError_t hipMemPoolSetAccess(hipMemPool_t, const hipMemAccessDesc *, size_t count)`
///
/// # Safety
/// `all` is null or points to `count` elements.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hipMemPoolSetAccess(handle: Pool, all: *const Access, count: usize) -> Code {
    // SAFETY: the caller guarantees what `# Safety` requires.
    last::note(current::begin_call("hipMemPoolSetAccess").and_then(|_| Ok(unsafe { open(handle, all, count) }?)))
}

/// `hipError_t hipMemPoolTrimTo(hipMemPool_t, size_t keep)`
#[unsafe(no_mangle)]
pub extern "C" fn hipMemPoolTrimTo(handle: Pool, keep: usize) -> Code {
    last::note(pool::find(handle).map(|pool| pool.trim(keep)).map_err(Code::from))
}

/// `hipError_t hipMallocFromPoolAsync(void **, size_t bytes, hipMemPool_t, hipStream_t)`
#[unsafe(no_mangle)]
pub extern "C" fn hipMallocFromPoolAsync(at: Option<&mut *mut c_void>, bytes: usize, handle: Pool, on: Stream) -> Code {
    last::note(current::begin_call("hipMallocFromPoolAsync").and_then(|device| {
        stream::find(on, device)?.capture.refuse()?;
        let pool = pool::find(handle)?;
        let address = memory::allocate_from(pool.device(), bytes, pool)?;
        write_output(at, ptr::with_exposed_provenance_mut(address as usize))
    }))
}

/// `hipError_t hipFreeAsync(void *, hipStream_t)`: frees memory of a pool when the stream reaches the free. Does not
/// wait.
#[unsafe(no_mangle)]
pub extern "C" fn hipFreeAsync(pointer: *mut c_void, on: Stream) -> Code {
    last::note(current::current().and_then(|device| {
        memory::free_async(pointer.addr() as DevicePointer, &*stream::find(on, device)?)?;
        Ok(device.check()?)
    }))
}
