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

/// A row has the name of the constant, the number, the name in the header without `nccl`, and the size in bytes.
macro_rules! data_types {
    ($($constant:ident = $number:literal, $name:ident, $size:literal;)*) => {
        impl DataType {
            $(
                #[doc = concat!("`nccl", stringify!($name), "`")]
                pub const $constant: Self = Self($number);
            )*

            /// Size of an element in bytes. `None` for an unknown type.
            pub(crate) fn size(self) -> Option<usize> {
                match self.0 {
                    $($number => Some($size),)*
                    _ => None,
                }
            }

            /// The name in the header, without `nccl`.
            pub(crate) fn name(self) -> &'static str {
                match self.0 {
                    $($number => stringify!($name),)*
                    _ => "no type",
                }
            }
        }
    };
}

data_types! {
    I8 = 0, Int8, 1;
    U8 = 1, Uint8, 1;
    I32 = 2, Int32, 4;
    U32 = 3, Uint32, 4;
    I64 = 4, Int64, 8;
    U64 = 5, Uint64, 8;
    F16 = 6, Float16, 2;
    F32 = 7, Float32, 4;
    F64 = 8, Float64, 8;
    BF16 = 9, Bfloat16, 2;
    F8E4M3 = 10, Float8e4m3, 1;
    F8E5M2 = 11, Float8e5m2, 1;
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
