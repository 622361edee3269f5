//! Types and codes of the driver's interface. Enumerations are integers.

#![allow(clippy::exhaustive_structs, reason = "the interface's")]

use std::ffi::{c_int, c_void};

/// `CUresult`
#[repr(transparent)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Code(pub c_int);

impl Code {
    /// `CUDA_SUCCESS`
    pub const SUCCESS: Self = Self(0);
    /// `CUDA_ERROR_INVALID_VALUE`
    pub const INVALID_VALUE: Self = Self(1);
    /// `CUDA_ERROR_OUT_OF_MEMORY`
    pub const OUT_OF_MEMORY: Self = Self(2);
    /// `CUDA_ERROR_NOT_INITIALIZED`
    pub const NOT_INITIALIZED: Self = Self(3);
    /// `CUDA_ERROR_INVALID_DEVICE`
    pub const INVALID_DEVICE: Self = Self(101);
    /// `CUDA_ERROR_INVALID_IMAGE`
    pub const INVALID_IMAGE: Self = Self(200);
    /// `CUDA_ERROR_INVALID_CONTEXT`
    pub const INVALID_CONTEXT: Self = Self(201);
    /// `CUDA_ERROR_PEER_ACCESS_UNSUPPORTED`
    pub const PEER_ACCESS_UNSUPPORTED: Self = Self(217);
    /// `CUDA_ERROR_INVALID_HANDLE`
    pub const INVALID_HANDLE: Self = Self(400);
    /// `CUDA_ERROR_ILLEGAL_STATE`
    pub const ILLEGAL_STATE: Self = Self(401);
    /// `CUDA_ERROR_NOT_FOUND`
    pub const NOT_FOUND: Self = Self(500);
    /// `CUDA_ERROR_NOT_READY`
    pub const NOT_READY: Self = Self(600);
    /// `CUDA_ERROR_ILLEGAL_ADDRESS`
    pub const ILLEGAL_ADDRESS: Self = Self(700);
    /// `CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED`
    pub const PEER_ACCESS_ALREADY_ENABLED: Self = Self(704);
    /// `CUDA_ERROR_PEER_ACCESS_NOT_ENABLED`
    pub const PEER_ACCESS_NOT_ENABLED: Self = Self(705);
    /// `CUDA_ERROR_NOT_SUPPORTED`
    pub const NOT_SUPPORTED: Self = Self(801);
    /// `CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED`
    pub const STREAM_CAPTURE_UNSUPPORTED: Self = Self(900);
    /// `CUDA_ERROR_STREAM_CAPTURE_INVALIDATED`
    pub const STREAM_CAPTURE_INVALIDATED: Self = Self(901);
    /// `CUDA_ERROR_STREAM_CAPTURE_MERGE`
    pub const STREAM_CAPTURE_MERGE: Self = Self(902);
    /// `CUDA_ERROR_STREAM_CAPTURE_UNMATCHED`
    pub const STREAM_CAPTURE_UNMATCHED: Self = Self(903);
    /// `CUDA_ERROR_STREAM_CAPTURE_UNJOINED`
    pub const STREAM_CAPTURE_UNJOINED: Self = Self(904);
    /// `CUDA_ERROR_STREAM_CAPTURE_ISOLATION`
    pub const STREAM_CAPTURE_ISOLATION: Self = Self(905);
    /// `CUDA_ERROR_CAPTURED_EVENT`
    pub const CAPTURED_EVENT: Self = Self(907);
    /// `CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD`
    pub const STREAM_CAPTURE_WRONG_THREAD: Self = Self(908);

    /// The return code of an export.
    pub(crate) fn of(result: Result<(), Self>) -> Self {
        result.err().unwrap_or(Self::SUCCESS)
    }
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
