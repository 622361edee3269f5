//! Memory pools: see `crate::cuda::pool`.

#![allow(unsafe_code, reason = "C functions")]

use std::ffi::{c_int, c_void};
use std::slice;

use super::write_output;
use crate::cuda::abi::{Access, Code, DevicePointer, Pool, PoolProps, Stream};
use crate::cuda::{capture, device, memory, peer, pool, stream};

/// `CU_MEMPOOL_ATTR_REUSE_ALLOW_INTERNAL_DEPENDENCIES`, of 32 bits. No memory of the double waits for another stream.
const INTERNAL_DEPENDENCIES: c_int = 3;
/// `CU_MEMPOOL_ATTR_RELEASE_THRESHOLD`
const THRESHOLD: c_int = 4;
/// `CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT`
const RESERVED: c_int = 5;
/// `CU_MEMPOOL_ATTR_USED_MEM_CURRENT`
const USED: c_int = 7;

/// `CUresult cuDeviceGetMemPool(CUmemoryPool *pool, CUdevice)`: the pool from which `cuMemAllocAsync` allocates.
#[unsafe(no_mangle)]
pub extern "C" fn cuDeviceGetMemPool(at: Option<&mut Pool>, ordinal: c_int) -> Code {
    Code::of(device::find(ordinal).and_then(|device| write_output(at, pool::handle_of_device(device))))
}

/// `CUresult cuMemPoolCreate(CUmemoryPool *pool, const CUmemPoolProps *)`: a pool whose memory can't be exported by
/// handles.
#[unsafe(no_mangle)]
pub extern "C" fn cuMemPoolCreate(at: Option<&mut Pool>, props: Option<&PoolProps>) -> Code {
    Code::of(device::begin_call("cuMemPoolCreate").and_then(|_| create(at, props)))
}

/// `CUresult cuMemPoolDestroy(CUmemoryPool)`: does not wait.
#[unsafe(no_mangle)]
pub extern "C" fn cuMemPoolDestroy(handle: Pool) -> Code {
    Code::of(pool::destroy(handle))
}

/// `CUresult cuMemPoolSetAttribute(CUmemoryPool, CUmemPool_attribute, void *value)`: sets the release threshold.
///
/// # Safety
/// `value` is null or points to 64 bits.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemPoolSetAttribute(handle: Pool, attribute: c_int, value: *const c_void) -> Code {
    // SAFETY: the caller guarantees what `# Safety` requires.
    Code::of(unsafe { set(handle, attribute, value) })
}

/// `CUresult cuMemPoolGetAttribute(CUmemoryPool, CUmemPool_attribute, void *value)`: the release threshold, the
/// reserved bytes or the used bytes.
///
/// # Safety
/// `value` is null or points to 64 bits.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemPoolGetAttribute(handle: Pool, attribute: c_int, value: *mut c_void) -> Code {
    // SAFETY: the caller guarantees what `# Safety` requires.
    Code::of(unsafe { get(handle, attribute, value) })
}

/// `CUresult cuMemPoolSetAccess(CUmemoryPool, const CUmemAccessDesc *, size_t count)`
///
/// # Safety
/// `all` is null or points to `count` elements.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemPoolSetAccess(handle: Pool, all: *const Access, count: usize) -> Code {
    // SAFETY: the caller guarantees what `# Safety` requires.
    Code::of(device::begin_call("cuMemPoolSetAccess").and_then(|_| unsafe { open(handle, all, count) }))
}

/// `CUresult cuMemPoolTrimTo(CUmemoryPool, size_t keep)`
#[unsafe(no_mangle)]
pub extern "C" fn cuMemPoolTrimTo(handle: Pool, keep: usize) -> Code {
    Code::of(capture::permit("cuMemPoolTrimTo").and_then(|()| pool::find(handle)).map(|pool| pool.trim(keep)))
}

/// `CUresult cuMemAllocFromPoolAsync(CUdeviceptr *, size_t bytes, CUmemoryPool, CUstream)`
#[unsafe(no_mangle)]
pub extern "C" fn cuMemAllocFromPoolAsync(
    at: Option<&mut DevicePointer>,
    bytes: usize,
    handle: Pool,
    on: Stream,
) -> Code {
    Code::of(device::begin_call("cuMemAllocFromPoolAsync").and_then(|device| {
        // The driver would add an allocation node to the graph; the double has no such nodes.
        stream::find(on, device)?.capture.refuse()?;
        let pool = pool::find(handle)?;
        write_output(at, memory::allocate_from(pool.device(), bytes, pool)?)
    }))
}

/// `CUresult cuMemAllocAsync(CUdeviceptr *, size_t bytes, CUstream)`: from the default pool of the stream's device. In a
/// capture, memory of the graph.
#[unsafe(no_mangle)]
pub extern "C" fn cuMemAllocAsync(at: Option<&mut DevicePointer>, bytes: usize, on: Stream) -> Code {
    Code::of(device::begin_call("cuMemAllocAsync").and_then(|device| {
        let (at, stream) = (at.ok_or(Code::INVALID_VALUE)?, stream::find(on, device)?);
        *at = match stream.capture.current() {
            Some(capture) => capture.allocate(&stream, bytes)?,
            None => memory::allocate_from(stream.device(), bytes, pool::of_device(stream.device()))?,
        };
        Ok(())
    }))
}

/// `CUresult cuMemFreeAsync(CUdeviceptr, CUstream)`: frees memory of a pool when the stream reaches the free. Does not
/// wait.
#[unsafe(no_mangle)]
pub extern "C" fn cuMemFreeAsync(pointer: DevicePointer, on: Stream) -> Code {
    Code::of(device::current().and_then(|device| {
        memory::free_async(pointer, &*stream::find(on, device)?)?;
        device.check()
    }))
}

pub(crate) fn create(at: Option<&mut Pool>, props: Option<&PoolProps>) -> Result<(), Code> {
    let props = props.filter(|props| [props.kind, props.handles, props.location.kind] == [1, 0, 1]);
    let device = device::find(props.ok_or(Code::INVALID_VALUE)?.location.id)?;
    write_output(at, pool::create(device))
}

/// # Safety
/// `value` is null or points to 64 bits.
pub(crate) unsafe fn set(handle: Pool, attribute: c_int, value: *const c_void) -> Result<(), Code> {
    let pool = pool::find(handle)?;
    if value.is_null() || ![THRESHOLD, INTERNAL_DEPENDENCIES].contains(&attribute) {
        return Err(Code::INVALID_VALUE);
    }
    if attribute == INTERNAL_DEPENDENCIES {
        return Ok(());
    }
    // SAFETY: the caller guarantees what `# Safety` requires.
    pool.set_threshold(unsafe { value.cast::<u64>().read() } as usize);
    Ok(())
}

/// # Safety
/// `value` is null or points to 64 bits.
pub(crate) unsafe fn get(handle: Pool, attribute: c_int, value: *mut c_void) -> Result<(), Code> {
    let [reserved, used, threshold] = pool::find(handle)?.numbers();
    let number = match attribute {
        THRESHOLD => threshold,
        RESERVED => reserved,
        USED => used,
        _ => return Err(Code::INVALID_VALUE),
    };
    if value.is_null() {
        return Err(Code::INVALID_VALUE);
    }
    // SAFETY: the caller guarantees what `# Safety` requires.
    unsafe { value.cast::<u64>().write(number as u64) };
    Ok(())
}

/// # Safety
/// `all` is null or points to `count` elements.
pub(crate) unsafe fn open(handle: Pool, all: *const Access, count: usize) -> Result<(), Code> {
    let pool = pool::find(handle)?;
    if all.is_null() {
        return Err(Code::INVALID_VALUE);
    }
    // SAFETY: the caller guarantees what `# Safety` requires.
    for access in unsafe { slice::from_raw_parts(all, count) } {
        let peer = device::find(access.location.id)?;
        if access.location.kind != 1 || access.flags != 3 || !peer::can_access(peer, pool.device()) {
            return Err(Code::INVALID_VALUE);
        }
        pool.open_to(peer.ordinal);
    }
    Ok(())
}
