//! A driver's pool of device memory (`cuMemPoolCreate`, `hipMemPoolCreate`): allocations and frees happen in stream
//! order, and do not wait.

#![allow(unsafe_code)]

use std::ffi::{c_int, c_void};
use std::ptr;

use disco_core::Result;

use crate::abi::Stream;
use crate::driver_table::functions;

functions! {
    /// The functions, which have the same signatures in CUDA (11.2 or later) and HIP (5.2 or later).
    pub struct PoolFunctions[8] {
        /// `cuMemPoolCreate(CUmemoryPool *, const CUmemPoolProps *)`
        0 create: fn(*mut PoolHandle, *const Props);
        /// `cuMemPoolDestroy(CUmemoryPool)`
        1 destroy: fn(PoolHandle);
        /// `cuMemPoolSetAttribute(CUmemoryPool, CUmemPool_attribute, void *value)`
        2 set_attribute: fn(PoolHandle, c_int, *const u64);
        /// `cuMemPoolGetAttribute(CUmemoryPool, CUmemPool_attribute, void *value)`
        3 get_attribute: fn(PoolHandle, c_int, *mut u64);
        /// `cuMemPoolSetAccess(CUmemoryPool, const CUmemAccessDesc *, size_t count)`
        4 set_access: fn(PoolHandle, *const Access, usize);
        /// `cuMemPoolTrimTo(CUmemoryPool, size_t keep)`
        5 trim_to: fn(PoolHandle, usize);
        /// `cuMemAllocFromPoolAsync(CUdeviceptr *, size_t bytes, CUmemoryPool, CUstream)`
        6 alloc: fn(*mut *mut u8, usize, PoolHandle, Stream);
        /// `cuMemFreeAsync(CUdeviceptr, CUstream)`
        7 free: fn(*mut u8, Stream);
    }
}

/// `CUmemoryPool`, `hipMemPool_t`
type PoolHandle = *mut c_void;

/// `CUmemPoolProps`, `hipMemPoolProps`
#[repr(C)]
struct Props {
    kind: c_int,
    handles: c_int,
    location: Location,
    security: *mut c_void,
    most: usize,
    reserved: [u8; 56],
}

/// `CUmemLocation`, `hipMemLocation`
#[repr(C)]
struct Location {
    kind: c_int,
    id: c_int,
}

/// `CUmemAccessDesc`, `hipMemAccessDesc`
#[repr(C)]
struct Access {
    location: Location,
    flags: c_int,
}

/// `CU_MEM_ALLOCATION_TYPE_PINNED`
const PINNED: c_int = 1;
/// `CU_MEM_LOCATION_TYPE_DEVICE`
const DEVICE: c_int = 1;
/// `CU_MEM_ACCESS_FLAGS_PROT_READWRITE`
const READ_WRITE: c_int = 3;
/// `CU_MEMPOOL_ATTR_RELEASE_THRESHOLD`
const RELEASE_THRESHOLD: c_int = 4;
/// `CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT`
const RESERVED: c_int = 5;
/// `CUDA_ERROR_OUT_OF_MEMORY`, `hipErrorOutOfMemory`
const OUT_OF_MEMORY: c_int = 2;

/// A pool of one device, whose memory is allocated and freed in the order of one stream. Its calls are made with the
/// device current.
pub(crate) struct Pool {
    functions: PoolFunctions,
    handle: PoolHandle,
    stream: Stream,
}

// SAFETY: the driver accepts a pool and a stream on any thread.
unsafe impl Send for Pool {}
// SAFETY: the driver accepts calls on one pool from several threads at a time.
unsafe impl Sync for Pool {}

impl Pool {
    /// Makes a pool that keeps at most `kept` unused bytes when the program synchronises a stream. `accessors` are the
    /// devices with access to its memory: NCCL lets the ranks of one process read each other's buffers.
    ///
    /// # Errors
    /// The device has no pools; errors of the driver.
    pub(crate) fn new(
        functions: PoolFunctions,
        (device, stream): (c_int, Stream),
        accessors: &[c_int],
        kept: u64,
    ) -> Result<Self> {
        let (mut handle, location) = (ptr::null_mut(), Location { kind: DEVICE, id: device });
        let props = Props { kind: PINNED, handles: 0, location, security: ptr::null_mut(), most: 0, reserved: [0; 56] };
        // SAFETY: `handle` is a valid output, and `props` has the driver's layout.
        functions.check(0, unsafe { (functions.create)(&mut handle, &props) })?;
        let pool = Self { functions, handle, stream };
        // SAFETY: the pool exists, and the value of this attribute has 64 bits.
        functions.check(2, unsafe { (functions.set_attribute)(handle, RELEASE_THRESHOLD, &kept) })?;
        let access = |&id| Access { location: Location { kind: DEVICE, id }, flags: READ_WRITE };
        let access: Vec<Access> = accessors.iter().map(access).collect();
        if !access.is_empty() {
            // SAFETY: the pool exists, and `access` has `access.len()` descriptions.
            functions.check(4, unsafe { (functions.set_access)(handle, access.as_ptr(), access.len()) })?;
        }
        Ok(pool)
    }

    /// Allocates memory for later work of the stream. None if the device has too little memory.
    ///
    /// # Errors
    /// Errors of the driver.
    pub(crate) fn alloc(&self, bytes: usize) -> Result<Option<*mut u8>> {
        let mut memory = ptr::null_mut();
        // SAFETY: the pool and the stream exist, and `memory` is a valid output.
        match unsafe { (self.functions.alloc)(&mut memory, bytes, self.handle, self.stream) } {
            OUT_OF_MEMORY => Ok(None),
            code => self.functions.check(6, code).map(|()| Some(memory)),
        }
    }

    /// Frees memory in stream order. Does not wait.
    ///
    /// # Safety
    /// The memory came from [`Pool::alloc`], and nothing that is enqueued later uses it.
    ///
    /// # Errors
    /// Errors of the driver.
    pub(crate) unsafe fn free(&self, memory: *mut u8) -> Result<()> {
        // SAFETY: the caller guarantees that `memory` is from this pool and that later work does not use it; the stream
        // exists.
        self.functions.check(7, unsafe { (self.functions.free)(memory, self.stream) })
    }

    /// Bytes that the pool has allocated from the device, used and unused.
    ///
    /// # Errors
    /// Errors of the driver.
    pub(crate) fn reserved(&self) -> Result<usize> {
        let mut bytes = 0;
        // SAFETY: the pool exists, and `bytes` is a valid output of 64 bits.
        let code = unsafe { (self.functions.get_attribute)(self.handle, RESERVED, &mut bytes) };
        self.functions.check(3, code).map(|()| bytes as usize)
    }

    /// Returns unused memory to the device until at most `keep` bytes are reserved.
    ///
    /// # Errors
    /// Errors of the driver.
    pub(crate) fn trim(&self, keep: usize) -> Result<()> {
        // SAFETY: the pool exists.
        self.functions.check(5, unsafe { (self.functions.trim_to)(self.handle, keep) })
    }
}

impl Drop for Pool {
    /// The driver completes pending frees of the stream before it destroys the pool.
    fn drop(&mut self) {
        // SAFETY: the pool exists, and its only owner destroys it once.
        let code = unsafe { (self.functions.destroy)(self.handle) };
        if let Err(error) = self.functions.check(1, code) {
            tracing::warn!(%error, "a pool of device memory can't be destroyed and is leaked");
        }
    }
}

disco_core::format_as!(Debug for Pool, |_| "<pool of the driver>");
