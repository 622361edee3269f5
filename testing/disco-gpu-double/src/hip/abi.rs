//! Types and codes of the interface. Enumerations are integers.

#![allow(clippy::exhaustive_structs, reason = "the interface's")]

use std::ffi::{c_int, c_void};

use crate::codes::codes;
use crate::cuda;

codes! {
    /// `hipError_t`
    SUCCESS = 0, hipSuccess, "no error";
    INVALID_VALUE = 1, hipErrorInvalidValue, "invalid argument";
    OUT_OF_MEMORY = 2, hipErrorOutOfMemory, "out of memory";
    NOT_INITIALIZED = 3, hipErrorNotInitialized, "initialization error";
    DEINITIALIZED = 4, hipErrorDeinitialized, "driver shutting down";
    INVALID_DEVICE_POINTER = 17, hipErrorInvalidDevicePointer, "invalid device pointer";
    INVALID_MEMCPY_DIRECTION = 21, hipErrorInvalidMemcpyDirection, "invalid copy direction for memcpy";
    INSUFFICIENT_DRIVER = 35, hipErrorInsufficientDriver, "driver version is insufficient for runtime version";
    NO_DEVICE = 100, hipErrorNoDevice, "no ROCm-capable device is detected";
    INVALID_DEVICE = 101, hipErrorInvalidDevice, "invalid device ordinal";
    INVALID_CONTEXT = 201, hipErrorInvalidContext, "invalid device context";
    PEER_ACCESS_UNSUPPORTED = 217, hipErrorPeerAccessUnsupported,
        "peer access is not supported between these two devices";
    INVALID_HANDLE = 400, hipErrorInvalidHandle, "invalid resource handle";
    NOT_READY = 600, hipErrorNotReady, "device not ready";
    ILLEGAL_ADDRESS = 700, hipErrorIllegalAddress, "an illegal memory access was encountered";
    PEER_ACCESS_ALREADY_ENABLED = 704, hipErrorPeerAccessAlreadyEnabled, "peer access is already enabled";
    CONTEXT_IS_DESTROYED = 709, hipErrorContextIsDestroyed, "context is destroyed";
    LAUNCH_FAILURE = 719, hipErrorLaunchFailure, "unspecified launch failure";
    NOT_SUPPORTED = 801, hipErrorNotSupported, "operation not supported";
    STREAM_CAPTURE_UNSUPPORTED = 900, hipErrorStreamCaptureUnsupported,
        "operation not permitted when stream is capturing";
    STREAM_CAPTURE_INVALIDATED = 901, hipErrorStreamCaptureInvalidated,
        "operation failed due to a previous error during capture";
}

/// Converts a code of CUDA: the codes that the double returns have the same numbers in HIP.
impl From<cuda::abi::Code> for Code {
    fn from(code: cuda::abi::Code) -> Self {
        Self(code.0)
    }
}

/// `hipDevice_t`
pub type DeviceId = cuda::abi::DeviceId;
/// `hipStream_t`
pub type Stream = *mut c_void;
/// `hipEvent_t`
pub type Event = *mut c_void;
/// `hipUUID`
pub type Uuid = cuda::abi::Uuid;
/// `hipIpcMemHandle_t`
pub type IpcHandle = cuda::abi::IpcHandle;

/// `hipMemcpyKind`
#[repr(transparent)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CopyKind(pub c_int);

impl CopyKind {
    /// `hipMemcpyHostToDevice`
    pub const HOST_TO_DEVICE: Self = Self(1);
    /// `hipMemcpyDeviceToHost`
    pub const DEVICE_TO_HOST: Self = Self(2);
    /// `hipMemcpyDeviceToDevice`
    pub const DEVICE_TO_DEVICE: Self = Self(3);
    /// `hipMemcpyDefault`: the direction follows from the addresses.
    pub const DEFAULT: Self = Self(4);
}

/// `hipIpcMemLazyEnablePeerAccess`: the only flag for opening memory of another process.
pub const IPC_LAZY_ENABLE_PEER_ACCESS: u32 = cuda::abi::IPC_LAZY_ENABLE_PEER_ACCESS;
/// `hipStreamNonBlocking`: this stream and the default stream do not wait for each other.
pub const STREAM_NON_BLOCKING: u32 = 1;
/// `hipEventDisableTiming`
pub const EVENT_DISABLE_TIMING: u32 = 2;
