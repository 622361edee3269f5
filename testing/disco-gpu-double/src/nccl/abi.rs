//! Types and codes of the interface. Enumerations are integers.

#![allow(clippy::exhaustive_structs, reason = "the interface's")]

use std::ffi::{c_int, c_void};

use crate::codes::codes;
use crate::cuda;

/// `ncclComm_t`
pub type CommHandle = *mut c_void;
/// `cudaStream_t`
pub type Stream = *mut c_void;

codes! {
    /// `ncclResult_t`
    SUCCESS = 0, ncclSuccess, "no error";
    UNHANDLED_CUDA_ERROR = 1, ncclUnhandledCudaError, "unhandled cuda error (run with NCCL_DEBUG=INFO for details)";
    SYSTEM_ERROR = 2, ncclSystemError, "unhandled system error (run with NCCL_DEBUG=INFO for details)";
    INTERNAL_ERROR = 3, ncclInternalError, "internal error - please report this issue to the NCCL developers";
    INVALID_ARGUMENT = 4, ncclInvalidArgument, "invalid argument (run with NCCL_DEBUG=WARN for details)";
    INVALID_USAGE = 5, ncclInvalidUsage, "invalid usage (run with NCCL_DEBUG=WARN for details)";
    REMOTE_ERROR = 6, ncclRemoteError, "remote process exited or there was a network error";
    IN_PROGRESS = 7, ncclInProgress, "NCCL operation in progress";
}

impl From<cuda::abi::Code> for Code {
    fn from(_: cuda::abi::Code) -> Self {
        Self::UNHANDLED_CUDA_ERROR
    }
}

/// `ncclDataType_t`
#[repr(transparent)]
#[derive(Clone, Copy, Debug, serde::Deserialize, PartialEq, Eq, serde::Serialize)]
pub struct DataType(pub c_int);

impl DataType {
    /// `ncclInt8`
    pub const I8: Self = Self(0);
    /// `ncclUint8`
    pub const U8: Self = Self(1);
    /// `ncclInt32`
    pub const I32: Self = Self(2);
    /// `ncclUint32`
    pub const U32: Self = Self(3);
    /// `ncclInt64`
    pub const I64: Self = Self(4);
    /// `ncclUint64`
    pub const U64: Self = Self(5);
    /// `ncclFloat16`
    pub const F16: Self = Self(6);
    /// `ncclFloat32`
    pub const F32: Self = Self(7);
    /// `ncclFloat64`
    pub const F64: Self = Self(8);
    /// `ncclBfloat16`
    pub const BF16: Self = Self(9);
    /// `ncclFloat8e4m3`
    pub const F8E4M3: Self = Self(10);
    /// `ncclFloat8e5m2`
    pub const F8E5M2: Self = Self(11);

    /// Size of an element in bytes. `None` for an unknown type.
    pub(crate) fn size(self) -> Option<usize> {
        Some(match self {
            Self::I8 | Self::U8 | Self::F8E4M3 | Self::F8E5M2 => 1,
            Self::F16 | Self::BF16 => 2,
            Self::I32 | Self::U32 | Self::F32 => 4,
            Self::I64 | Self::U64 | Self::F64 => 8,
            _ => return None,
        })
    }

    /// The name in the header, without `nccl`.
    pub(crate) fn name(self) -> &'static str {
        const NAMES: [&str; 12] = [
            "Int8",
            "Uint8",
            "Int32",
            "Uint32",
            "Int64",
            "Uint64",
            "Float16",
            "Float32",
            "Float64",
            "Bfloat16",
            "Float8e4m3",
            "Float8e5m2",
        ];
        usize::try_from(self.0).ok().and_then(|at| NAMES.get(at).copied()).unwrap_or("no type")
    }
}

/// `ncclRedOp_t`. Handles of users' operators follow the built-in operators.
#[repr(transparent)]
#[derive(Clone, Copy, Debug, serde::Deserialize, PartialEq, Eq, serde::Serialize)]
pub struct RedOp(pub c_int);

impl RedOp {
    /// `ncclSum`
    pub const SUM: Self = Self(0);
    /// `ncclProd`
    pub const PROD: Self = Self(1);
    /// `ncclMax`
    pub const MAX: Self = Self(2);
    /// `ncclMin`
    pub const MIN: Self = Self(3);
    /// `ncclAvg`
    pub const AVG: Self = Self(4);
    /// `ncclNumOps`: the first handle that is not built in.
    pub const FIRST_OWN: Self = Self(5);
}

/// `ncclScalarDevice`: the scalar is in device memory and is read when the collective runs.
pub const SCALAR_DEVICE: c_int = 0;
/// `ncclScalarHostImmediate`: the scalar is in host memory and is read during the call.
pub const SCALAR_HOST_IMMEDIATE: c_int = 1;
/// `NCCL_SPLIT_NOCOLOR`
pub const SPLIT_NO_COLOR: c_int = -1;

/// `ncclUniqueId`: passed by value.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UniqueId {
    /// The bytes.
    pub internal: [u8; 128],
}
