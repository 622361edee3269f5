//! Types and constants of the C interface. C enumerations are integers here, because a newer library may return values
//! that this module does not name.

#![allow(clippy::exhaustive_structs, reason = "definitions of a C interface")]

use std::ffi::{c_int, c_void};

use disco_core::{DType, Reduction};

/// `ncclComm_t`
pub type Comm = *mut c_void;

/// `cudaStream_t`, `hipStream_t`
pub type Stream = *mut c_void;

/// `ncclResult_t`
#[repr(transparent)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Code(pub c_int);

impl Code {
    /// `ncclSuccess`
    pub const SUCCESS: Self = Self(0);
    /// `ncclInvalidArgument`
    pub const INVALID_ARGUMENT: Self = Self(4);
    /// `ncclInProgress`: a call on a non-blocking communicator has not completed yet.
    pub const IN_PROGRESS: Self = Self(7);
}

/// `ncclDataType_t`
#[repr(transparent)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DataType(pub c_int);

impl DataType {
    /// `ncclUint8`. Operations that only move elements use this type for every dtype.
    pub const U8: Self = Self(1);

    /// The library's type of a dtype. None for 16-bit integers, which the interface lacks. 8-bit floats need NCCL 2.24
    /// or later. A bool is an 8-bit integer, and [`RedOp::of`] selects reductions that keep it 0 or 1.
    pub fn of(dtype: DType) -> Option<Self> {
        let code = match dtype {
            DType::I8 => 0,
            DType::Bool | DType::U8 => 1,
            DType::I32 => 2,
            DType::U32 => 3,
            DType::I64 => 4,
            DType::U64 => 5,
            DType::F16 => 6,
            DType::F32 => 7,
            DType::F64 => 8,
            DType::BF16 => 9,
            DType::F8E4M3 => 10,
            DType::F8E5M2 => 11,
            _ => return None,
        };
        Some(Self(code))
    }
}

/// `ncclRedOp_t`
#[repr(transparent)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RedOp(pub c_int);

impl RedOp {
    /// `ncclMax`
    pub const MAX: Self = Self(2);
    /// `ncclMin`
    pub const MIN: Self = Self(3);

    /// The library's reduction for a dtype. Bools are 0 or 1, so `max` computes their `or`, and `min` computes their
    /// `and`.
    pub fn of(reduction: Reduction, dtype: DType) -> Option<Self> {
        Some(match (reduction, dtype) {
            (Reduction::Avg, DType::Bool) => return None,
            (Reduction::Sum | Reduction::Max, DType::Bool) => Self::MAX,
            (_, DType::Bool) => Self::MIN,
            (Reduction::Sum, _) => Self(0),
            (Reduction::Prod, _) => Self(1),
            (Reduction::Max, _) => Self::MAX,
            (Reduction::Min, _) => Self::MIN,
            (Reduction::Avg, _) => Self(4),
            _ => return None,
        })
    }
}

/// `ncclUniqueId`: the address at which the ranks of a new communicator connect. Passed by value.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UniqueId(pub [u8; 128]);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn max_and_min_have_the_codes_2_and_3() {
        assert_eq!(RedOp::of(Reduction::Max, DType::F32), Some(RedOp(2)));
        assert_eq!(RedOp::of(Reduction::Min, DType::F32), Some(RedOp(3)));
    }

    #[test]
    fn reductions_of_bools_use_only_max_and_min() {
        for (reduction, op) in [
            (Reduction::Sum, Some(RedOp::MAX)),
            (Reduction::Prod, Some(RedOp::MIN)),
            (Reduction::Min, Some(RedOp::MIN)),
            (Reduction::Max, Some(RedOp::MAX)),
            (Reduction::Avg, None),
        ] {
            assert_eq!(RedOp::of(reduction, DType::Bool), op, "{reduction}");
        }
    }
}
