//! Reduction operators that users make.

#![allow(unsafe_code, reason = "C functions")]

use std::ffi::{c_int, c_void};
use std::slice;
use std::sync::atomic::{AtomicI32, Ordering::Relaxed};

use super::null;
use crate::cuda::memory::Span;
use crate::nccl::abi::{Code, CommHandle, DataType, RedOp, SCALAR_DEVICE, SCALAR_HOST_IMMEDIATE};
use crate::nccl::reduce::{Scalar, Source};
use crate::nccl::{comm, text};
use crate::sync::lock;

/// The next operator. Operators are unique across communicators, so that a handle of another communicator is detected.
static NEXT: AtomicI32 = AtomicI32::new(RedOp::FIRST_OWN.0);

/// `ncclRedOpCreatePreMulSum(ncclRedOp_t *op, void *scalar, datatype, ncclScalarResidence_t, ncclComm_t)`
///
/// # Safety
/// The scalar is null, or points to memory of the given residence.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ncclRedOpCreatePreMulSum(
    op: Option<&mut RedOp>,
    scalar: *mut c_void,
    dtype: DataType,
    residence: c_int,
    comm: CommHandle,
) -> Code {
    let create = || {
        let comm = comm::find(comm)?;
        let _turn = comm.begin_call()?;
        let op = op.ok_or_else(null)?;
        let refuse = |why: &str| text::refuse(Code::INVALID_ARGUMENT, format!("ncclRedOpCreatePreMulSum: {why}"));
        let size = dtype.size().ok_or_else(|| refuse("there is no such data type"))?;
        let source = match residence {
            SCALAR_DEVICE => Source::Device(
                Span::find(scalar.addr(), size).ok_or_else(|| refuse("the scalar is not in device memory"))?,
            ),
            SCALAR_HOST_IMMEDIATE if !scalar.is_null() => {
                // SAFETY: the caller guarantees a scalar of this size.
                Source::Host(unsafe { slice::from_raw_parts(scalar.cast::<u8>(), size) }.to_vec())
            }
            _ => return Err(refuse("the scalar is null, or its residence is invalid")),
        };
        let number = NEXT.fetch_add(1, Relaxed);
        lock(&comm.scalars).insert(number, Scalar { dtype, source });
        *op = RedOp(number);
        Ok(())
    };
    Code::of(create())
}

/// `ncclRedOpDestroy(ncclRedOp_t op, ncclComm_t comm)`
#[unsafe(no_mangle)]
pub extern "C" fn ncclRedOpDestroy(op: RedOp, comm: CommHandle) -> Code {
    Code::of(comm::find(comm).and_then(|comm| {
        let _turn = comm.begin_call()?;
        let removed = lock(&comm.scalars).remove(&op.0);
        let none = || text::refuse(Code::INVALID_ARGUMENT, format!("ncclRedOpDestroy: there is no operator {}", op.0));
        removed.map(drop).ok_or_else(none)
    }))
}
