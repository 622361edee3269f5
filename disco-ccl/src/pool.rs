//! A driver's pool of device memory (`cuMemPoolCreate`, `hipMemPoolCreate`): allocations and frees happen in the order of a stream,
//! and wait for nothing.

#![allow(unsafe_code)]

use std::ffi::{CStr, c_int, c_void};
use std::fmt;
use std::ptr;

use disco_core::Result;
use disco_dl::Library;

use crate::abi::Stream;

/// The functions, alike in CUDA (11.2 or later) and in HIP (5.2 or later).
#[derive(Clone, Copy, Debug)]
pub struct PoolFunctions {
    /// `cuMemPoolCreate(CUmemoryPool *, const CUmemPoolProps *)`
    create: unsafe extern "C" fn(*mut PoolHandle, *const Props) -> c_int,
    /// `cuMemPoolDestroy(CUmemoryPool)`
    destroy: unsafe extern "C" fn(PoolHandle) -> c_int,
    /// `cuMemPoolSetAttribute(CUmemoryPool, CUmemPool_attribute, void *value)`
    set_attribute: unsafe extern "C" fn(PoolHandle, c_int, *const u64) -> c_int,
    /// `cuMemPoolGetAttribute(CUmemoryPool, CUmemPool_attribute, void *value)`
    get_attribute: unsafe extern "C" fn(PoolHandle, c_int, *mut u64) -> c_int,
    /// `cuMemPoolSetAccess(CUmemoryPool, const CUmemAccessDesc *, size_t count)`
    set_access: unsafe extern "C" fn(PoolHandle, *const Access, usize) -> c_int,
    /// `cuMemPoolTrimTo(CUmemoryPool, size_t keep)`
    trim_to: unsafe extern "C" fn(PoolHandle, usize) -> c_int,
    /// `cuMemAllocFromPoolAsync(CUdeviceptr *, size_t bytes, CUmemoryPool, CUstream)`
    alloc: unsafe extern "C" fn(*mut *mut u8, usize, PoolHandle, Stream) -> c_int,
    /// `cuMemFreeAsync(CUdeviceptr, CUstream)`
    free: unsafe extern "C" fn(*mut u8, Stream) -> c_int,
    /// As the library names them, in this order.
    names: &'static [&'static CStr; 8],
    /// What a code of a function means.
    check: fn(&'static CStr, c_int) -> Result<()>,
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

/// A pool of one device, whose memory is allocated and freed in the order of one stream. Its calls are made with the device current.
pub(crate) struct Pool {
    functions: PoolFunctions,
    handle: PoolHandle,
    stream: Stream,
}

// SAFETY: the driver takes a pool and a stream on any thread.
unsafe impl Send for Pool {}
// SAFETY: as above, also of several at a time.
unsafe impl Sync for Pool {}

impl PoolFunctions {
    /// The functions of a library, or the first that it lacks. `names` are those of the fields, in their order.
    ///
    /// # Errors
    /// The name that is absent.
    ///
    /// # Safety
    /// The names are those of CUDA's or HIP's functions.
    pub unsafe fn resolve(
        library: &Library,
        names: &'static [&'static CStr; 8],
        check: fn(&'static CStr, c_int) -> Result<()>,
    ) -> Result<Self, &'static CStr> {
        macro_rules! function {
            ($at:literal) => {
                // SAFETY: the field of this name has its arguments and its result, by the caller's word.
                unsafe { library.function(names[$at]) }.ok_or(names[$at])?
            };
        }
        Ok(Self {
            create: function!(0),
            destroy: function!(1),
            set_attribute: function!(2),
            get_attribute: function!(3),
            set_access: function!(4),
            trim_to: function!(5),
            alloc: function!(6),
            free: function!(7),
            names,
            check,
        })
    }
}

impl Pool {
    /// A pool that keeps at most `kept` bytes when somebody synchronises a stream. `accessors` are the devices that may touch its
    /// memory: NCCL lets the ranks of one process read each other's buffers.
    ///
    /// # Errors
    /// The device has no pools; the driver's own.
    pub(crate) fn new(
        functions: PoolFunctions,
        (device, stream): (c_int, Stream),
        accessors: &[c_int],
        kept: u64,
    ) -> Result<Self> {
        let (mut handle, location) = (ptr::null_mut(), Location { kind: DEVICE, id: device });
        let props = Props { kind: PINNED, handles: 0, location, security: ptr::null_mut(), most: 0, reserved: [0; 56] };
        // SAFETY: both places are there.
        functions.check(0, unsafe { (functions.create)(&mut handle, &props) })?;
        let pool = Self { functions, handle, stream };
        // SAFETY: the pool is there, and the value has 64 bits.
        functions.check(2, unsafe { (functions.set_attribute)(handle, RELEASE_THRESHOLD, &kept) })?;
        let access = |&id| Access { location: Location { kind: DEVICE, id }, flags: READ_WRITE };
        let access: Vec<Access> = accessors.iter().map(access).collect();
        if !access.is_empty() {
            // SAFETY: the pool is there, and so many descriptions are.
            functions.check(4, unsafe { (functions.set_access)(handle, access.as_ptr(), access.len()) })?;
        }
        Ok(pool)
    }

    /// Memory that work on the stream may use from now on; none where there is no room.
    ///
    /// # Errors
    /// The driver's own.
    pub(crate) fn alloc(&self, bytes: usize) -> Result<Option<*mut u8>> {
        let mut memory = ptr::null_mut();
        // SAFETY: pool and stream are there, and so is the place.
        match unsafe { (self.functions.alloc)(&mut memory, bytes, self.handle, self.stream) } {
            OUT_OF_MEMORY => Ok(None),
            code => self.functions.check(6, code).map(|()| Some(memory)),
        }
    }

    /// Frees memory when the stream gets there. Waits for nothing.
    ///
    /// # Safety
    /// The memory came from [`Pool::alloc`], and nothing that is enqueued later uses it.
    ///
    /// # Errors
    /// The driver's own.
    pub(crate) unsafe fn free(&self, memory: *mut u8) -> Result<()> {
        // SAFETY: as the caller promises; the stream is there.
        self.functions.check(7, unsafe { (self.functions.free)(memory, self.stream) })
    }

    /// Bytes that the pool has of the device, used or not.
    ///
    /// # Errors
    /// The driver's own.
    pub(crate) fn reserved(&self) -> Result<usize> {
        let mut bytes = 0;
        // SAFETY: the pool is there, and the place has 64 bits.
        let code = unsafe { (self.functions.get_attribute)(self.handle, RESERVED, &mut bytes) };
        self.functions.check(3, code).map(|()| bytes as usize)
    }

    /// Gives unused memory back to the device until no more than `keep` bytes are reserved.
    ///
    /// # Errors
    /// The driver's own.
    pub(crate) fn trim(&self, keep: usize) -> Result<()> {
        // SAFETY: the pool is there.
        self.functions.check(5, unsafe { (self.functions.trim_to)(self.handle, keep) })
    }
}

impl PoolFunctions {
    fn check(&self, function: usize, code: c_int) -> Result<()> {
        (self.check)(self.names[function], code)
    }
}

impl Drop for Pool {
    /// Frees that the stream has not come to are still done.
    fn drop(&mut self) {
        // SAFETY: the pool is there, for the last time.
        let code = unsafe { (self.functions.destroy)(self.handle) };
        if let Err(error) = self.functions.check(1, code) {
            tracing::warn!(%error, "a pool of device memory is left behind");
        }
    }
}

impl fmt::Debug for Pool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "<pool of the driver's>")
    }
}
