//! Sums of inputs that each rank multiplies by its own factor first.

#![allow(unsafe_code)]

use std::ffi::c_int;

use disco_core::{DType, Error, Op, Reduction, Result};
use half::{bf16, f16};

use crate::abi::{Code, DataType, RedOp};
use crate::collective::Calls;
use crate::library::Library;
use crate::shared_comm::SharedComm;

/// `ncclScalarHostImmediate`: the factor is read from the host, before the call returns.
const HOST_IMMEDIATE: c_int = 1;

/// A factor, encoded as an element of its dtype.
#[derive(Clone, Copy)]
pub(crate) struct Factor {
    bytes: [u8; 8],
    dtype: DataType,
}

impl Factor {
    /// Encodes a factor for an operation that sums floats.
    ///
    /// # Errors
    /// [`Error::Unsupported`]: the library is too old, or has no factors of this dtype. [`Error::Invalid`]: the
    /// operation is not a sum.
    pub(crate) fn new(library: &Library, op: &Op, factor: f64) -> Result<Self> {
        let Some(dtype) = op.dtype().filter(|_| op.reduction() == Some(Reduction::Sum)) else {
            return Err(Error::invalid(format!("premul_sum: {} is not a sum", op.kind())));
        };
        let mut bytes = [0; 8];
        match dtype {
            DType::F64 => bytes = factor.to_le_bytes(),
            DType::F32 => bytes[..4].copy_from_slice(&(factor as f32).to_le_bytes()),
            DType::F16 => bytes[..2].copy_from_slice(&f16::from_f64(factor).to_le_bytes()),
            DType::BF16 => bytes[..2].copy_from_slice(&bf16::from_f64(factor).to_le_bytes()),
            _ => return Err(unsupported(library, dtype)),
        }
        let is_there = library.table.red_op_create_pre_mul_sum.is_some() && library.table.red_op_destroy.is_some();
        let code = DataType::of(dtype).filter(|_| is_there);
        code.map(|dtype| Self { bytes, dtype }).ok_or_else(|| unsupported(library, dtype))
    }
}

fn unsupported(library: &Library, dtype: DType) -> Error {
    Error::Unsupported { backend: library.backend(), operation: "premul_sum".into(), dtype: Some(dtype) }
}

impl Calls<'_> {
    /// Makes the calls of one operation, with a factor for this rank's input. The caller [destroys](destroy) the
    /// reduction afterwards.
    pub(crate) fn run_scaled(&mut self, op: &Op, factor: Factor) {
        let Some(create) = self.table.red_op_create_pre_mul_sum else {
            return self.outcome.add("ncclRedOpCreatePreMulSum", Code::INVALID_ARGUMENT);
        };
        let mut redop = RedOp::MAX;
        // SAFETY: `SharedComm::call` keeps the communicator alive. `redop` is a valid output, and the factor is an
        // element of its dtype.
        let code = unsafe { create(&mut redop, factor.bytes.as_ptr().cast(), factor.dtype, HOST_IMMEDIATE, self.comm) };
        self.outcome.add("ncclRedOpCreatePreMulSum", code);
        if code != Code::SUCCESS {
            return;
        }
        self.redop = Some(redop);
        match op.dtype() {
            Some(dtype) if self.ranks == 1 => self.scale_alone(op, dtype),
            _ => self.run(op),
        }
    }
}

/// Destroys a reduction, after the library has settled the launch that uses it.
///
/// # Errors
/// [`Error::Aborted`]; errors of the library.
pub(crate) fn destroy(library: &Library, shared_comm: &SharedComm, redop: RedOp) -> Result<()> {
    let Some(destroy) = library.table.red_op_destroy else { return Ok(()) };
    // SAFETY: this communicator has made the reduction, and launched operations have copied the data that they need.
    let code = shared_comm.call(|_, comm| unsafe { destroy(redop, comm) })?;
    library.check("ncclRedOpDestroy", code)
}
