//! Types and constants of the interface. Enumerations are integers: a library that is newer than this page knows more.

#![allow(clippy::exhaustive_structs, reason = "the interface's")]

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
    /// `ncclInProgress`: a non-blocking communicator has not got that far.
    pub const IN_PROGRESS: Self = Self(7);
}

/// `ncclDataType_t`
#[repr(transparent)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DataType(pub c_int);

impl DataType {
    /// `ncclUint8`: also what is moved and not computed with.
    pub const U8: Self = Self(1);

    /// What the interface calls a dtype; none for 16-bit integers, which it has not. Libraries have eighths since NCCL 2.24. A bool
    /// is a number of 8 bits, of which [`RedOp::of`] knows.
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

    /// What the interface calls a reduction of a dtype. Bools of 0 and 1 have their largest for `or`, and their smallest for `and`.
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

/// `ncclUniqueId`: where the ranks of a communicator meet. Passed by value.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UniqueId(pub [u8; 128]);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn largest_and_smallest_are_not_in_our_order() {
        assert_eq!(RedOp::of(Reduction::Max, DType::F32), Some(RedOp(2)));
        assert_eq!(RedOp::of(Reduction::Min, DType::F32), Some(RedOp(3)));
    }

    #[test]
    fn bools_are_reduced_as_numbers_of_0_and_1() {
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
