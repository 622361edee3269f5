//! Reductions of a communicator with one rank, whose elements NCCL multiplies by a factor with a kernel of its own
//! (`onerank.cu`). All other reductions are copies.

use super::abi::{DataType, RedOp};
use super::call::Call;
use super::reduce::Operation;
use crate::settings;

/// The first version whose kernel was seen to write all elements. NCCL 2.28.9 leaves out the last ones.
const FIRST_WHOLE_VERSION: i32 = 23_007;
/// Bytes for each block of the kernel, and its largest number of blocks.
const BLOCK_BYTES: usize = 16 << 10;
const MAX_BLOCKS: usize = 32;
/// The segments of blocks begin at multiples of this number of bytes.
const PACK_BYTES: usize = 16;

/// Whether NCCL refuses the reduction: its kernel lacks 8-bit floats, in all versions so far.
pub(crate) fn lacks(dtype: DataType, operation: &Operation) -> bool {
    matches!(dtype, DataType::F8E4M3 | DataType::F8E5M2) && has_factor(dtype, operation)
}

/// Number of bytes of the output that NCCL writes, from its start.
pub(crate) fn written_bytes(call: &Call) -> usize {
    let size = call.dtype.size().unwrap_or(1);
    let bytes = call.count * size;
    if !has_factor(call.dtype, &call.operation) || settings::read().nccl_version() >= FIRST_WHOLE_VERSION {
        return bytes;
    }
    let blocks = bytes.div_ceil(BLOCK_BYTES).clamp(1, MAX_BLOCKS);
    // The segment of a block is rounded down.
    let segment = (call.count / blocks).next_multiple_of(PACK_BYTES / size);
    bytes.min(blocks * segment * size)
}

/// Averages of integers divide afterwards, by 1.
fn has_factor(dtype: DataType, operation: &Operation) -> bool {
    match operation {
        Operation::Built(op) => *op == RedOp::AVG && dtype.0 > DataType::U64.0,
        Operation::PreMulSum(_) => true,
    }
}
