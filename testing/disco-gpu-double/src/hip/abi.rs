//! Types and codes of the interface. Enumerations are integers.

#![allow(clippy::exhaustive_structs, reason = "the interface's")]

use std::ffi::{c_int, c_void};

use crate::cuda;

/// `hipError_t`
#[repr(transparent)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Code(pub c_int);

impl Code {
    /// `hipSuccess`
    pub const SUCCESS: Self = Self(0);
    /// `hipErrorInvalidValue`
    pub const INVALID_VALUE: Self = Self(1);
    /// `hipErrorOutOfMemory`
    pub const OUT_OF_MEMORY: Self = Self(2);
    /// `hipErrorInvalidMemcpyDirection`
    pub const INVALID_MEMCPY_DIRECTION: Self = Self(21);
    /// `hipErrorNoDevice`
    pub const NO_DEVICE: Self = Self(100);
    /// `hipErrorInvalidDevice`
    pub const INVALID_DEVICE: Self = Self(101);
    /// `hipErrorInvalidContext`
    pub const INVALID_CONTEXT: Self = Self(201);
    /// `hipErrorInvalidHandle`
    pub const INVALID_HANDLE: Self = Self(400);
    /// `hipErrorNotReady`
    pub const NOT_READY: Self = Self(600);
    /// `hipErrorIllegalAddress`
    pub const ILLEGAL_ADDRESS: Self = Self(700);
    /// `hipErrorPeerAccessAlreadyEnabled`
    pub const PEER_ACCESS_ALREADY_ENABLED: Self = Self(704);
    /// `hipErrorPeerAccessNotEnabled`
    pub const PEER_ACCESS_NOT_ENABLED: Self = Self(705);
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
