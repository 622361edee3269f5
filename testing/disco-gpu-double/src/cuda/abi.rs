//! Types and codes of the driver's interface. Enumerations are integers.

#![allow(clippy::exhaustive_structs, reason = "the interface's")]

use std::ffi::{c_int, c_void};

use crate::codes::codes;

codes! {
    /// `CUresult`
    SUCCESS = 0, CUDA_SUCCESS, "no error";
    INVALID_VALUE = 1, CUDA_ERROR_INVALID_VALUE, "invalid argument";
    OUT_OF_MEMORY = 2, CUDA_ERROR_OUT_OF_MEMORY, "out of memory";
    NOT_INITIALIZED = 3, CUDA_ERROR_NOT_INITIALIZED, "initialization error";
    DEINITIALIZED = 4, CUDA_ERROR_DEINITIALIZED, "driver shutting down";
    STUB_LIBRARY = 34, CUDA_ERROR_STUB_LIBRARY, "CUDA driver is a stub library";
    DEVICE_UNAVAILABLE = 46, CUDA_ERROR_DEVICE_UNAVAILABLE, "CUDA-capable device(s) is/are busy or unavailable";
    NO_DEVICE = 100, CUDA_ERROR_NO_DEVICE, "no CUDA-capable device is detected";
    INVALID_DEVICE = 101, CUDA_ERROR_INVALID_DEVICE, "invalid device ordinal";
    INVALID_IMAGE = 200, CUDA_ERROR_INVALID_IMAGE, "device kernel image is invalid";
    INVALID_CONTEXT = 201, CUDA_ERROR_INVALID_CONTEXT, "invalid device context";
    PEER_ACCESS_UNSUPPORTED = 217, CUDA_ERROR_PEER_ACCESS_UNSUPPORTED,
        "peer access is not supported between these two devices";
    INVALID_HANDLE = 400, CUDA_ERROR_INVALID_HANDLE, "invalid resource handle";
    ILLEGAL_STATE = 401, CUDA_ERROR_ILLEGAL_STATE, "the operation cannot be performed in the present state";
    NOT_FOUND = 500, CUDA_ERROR_NOT_FOUND, "named symbol not found";
    NOT_READY = 600, CUDA_ERROR_NOT_READY, "device not ready";
    ILLEGAL_ADDRESS = 700, CUDA_ERROR_ILLEGAL_ADDRESS, "an illegal memory access was encountered";
    PEER_ACCESS_ALREADY_ENABLED = 704, CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED, "peer access is already enabled";
    CONTEXT_IS_DESTROYED = 709, CUDA_ERROR_CONTEXT_IS_DESTROYED, "context is destroyed";
    LAUNCH_FAILED = 719, CUDA_ERROR_LAUNCH_FAILED, "unspecified launch failure";
    NOT_SUPPORTED = 801, CUDA_ERROR_NOT_SUPPORTED, "operation not supported";
    SYSTEM_NOT_READY = 802, CUDA_ERROR_SYSTEM_NOT_READY, "system not yet initialized";
    SYSTEM_DRIVER_MISMATCH = 803, CUDA_ERROR_SYSTEM_DRIVER_MISMATCH,
        "system has unsupported display driver / cuda driver combination";
    STREAM_CAPTURE_UNSUPPORTED = 900, CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED,
        "operation not permitted when stream is capturing";
    STREAM_CAPTURE_INVALIDATED = 901, CUDA_ERROR_STREAM_CAPTURE_INVALIDATED,
        "operation failed due to a previous error during capture";
    STREAM_CAPTURE_MERGE = 902, CUDA_ERROR_STREAM_CAPTURE_MERGE,
        "operation would result in a merge of separate capture sequences";
    STREAM_CAPTURE_UNMATCHED = 903, CUDA_ERROR_STREAM_CAPTURE_UNMATCHED,
        "capture was not ended in the same stream as it began";
    STREAM_CAPTURE_UNJOINED = 904, CUDA_ERROR_STREAM_CAPTURE_UNJOINED, "capturing stream has unjoined work";
    STREAM_CAPTURE_ISOLATION = 905, CUDA_ERROR_STREAM_CAPTURE_ISOLATION,
        "dependency created on uncaptured work in another stream";
    CAPTURED_EVENT = 907, CUDA_ERROR_CAPTURED_EVENT,
        "operation not permitted on an event last recorded in a capturing stream";
    STREAM_CAPTURE_WRONG_THREAD = 908, CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD,
        "attempt to terminate a thread-local capture sequence from another thread";
    UNKNOWN = 999, CUDA_ERROR_UNKNOWN, "unknown error";
}

/// `CUdevice`
pub type DeviceId = c_int;
/// `CUdeviceptr`
pub type DevicePointer = u64;
/// `CUcontext`
pub type Context = *mut c_void;
/// `CUstream`
pub type Stream = *mut c_void;
/// `CUevent`
pub type Event = *mut c_void;

/// `CUmemoryPool`
pub type Pool = *mut c_void;

/// `CUmemPoolProps`, and `hipMemPoolProps`
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct PoolProps {
    /// `CU_MEM_ALLOCATION_TYPE_PINNED`
    pub kind: c_int,
    /// `CU_MEM_HANDLE_TYPE_NONE`
    pub handles: c_int,
    /// Location of the memory.
    pub location: Location,
    /// Security attributes, which only Windows uses.
    pub security: *mut c_void,
    /// Maximum size in bytes; 0 is unlimited.
    pub most: usize,
    /// Zeros.
    pub reserved: [u8; 56],
}

/// `CUmemLocation`, and `hipMemLocation`
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Location {
    /// `CU_MEM_LOCATION_TYPE_DEVICE`: 1
    pub kind: c_int,
    /// The device.
    pub id: c_int,
}

/// `CUmemAccessDesc`, and `hipMemAccessDesc`
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Access {
    /// The device that gets access.
    pub location: Location,
    /// `CU_MEM_ACCESS_FLAGS_PROT_READWRITE`: 3
    pub flags: c_int,
}

/// `CUgraph`
pub type Graph = *mut c_void;
/// `CUgraphExec`
pub type GraphExec = *mut c_void;
/// `CUmodule`
pub type Module = *mut c_void;
/// `CUfunction`
pub type Function = *mut c_void;

/// `CUuuid`
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Uuid {
    /// The bytes.
    pub bytes: [u8; 16],
}

/// `CUipcMemHandle`
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IpcHandle {
    /// The bytes.
    pub reserved: [u8; 64],
}

/// `CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS`: the only flag for opening memory of another process.
pub const IPC_LAZY_ENABLE_PEER_ACCESS: u32 = 1;
/// `CU_STREAM_NON_BLOCKING`: this stream and the default stream do not wait for each other.
pub const STREAM_NON_BLOCKING: u32 = 1;
