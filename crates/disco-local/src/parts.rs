//! The tensors of a rank in an operation, and helpers for all schedules.

use disco_core::op::Merge;
use disco_core::{DType, Error, Op, Reduction, Result};

use crate::NAME;
use crate::active_call::{Memory, Region};

/// Total size of all tensors from which results are written with streaming stores.
pub(crate) const STREAMING_MIN_BYTES: usize = 12 << 20;

/// The input and output of a rank. For an in-place operation the input is the part of `dst` that `MPI_IN_PLACE`
/// denotes. A tensor that is not significant on this rank is empty.
pub(crate) fn parts(op: &Op, rank: usize, size: usize) -> Result<(Region, Region)> {
    let [src, dst] = [op.src(), op.dst()].map(|tensor| tensor.map(Region::of));
    let at_root = op.root().is_none_or(|root| root.index() == rank);
    let (input, output) = match op {
        Op::AllGather { .. } => (src.or(dst.map(|dst| dst.block(rank, size)).transpose()?), dst),
        Op::Gather { .. } if at_root => (src.or(dst.map(|dst| dst.block(rank, size)).transpose()?), dst),
        Op::AllGatherV { counts, .. } => {
            (src.or(dst.map(|dst| uneven(dst, counts, rank, width(op))).transpose()?), dst)
        }
        Op::Reduce { .. } | Op::Gather { .. } if !at_root => (src, None),
        Op::Broadcast { .. } | Op::Scatter { .. } if !at_root => (None, dst),
        Op::Scatter { .. } => (src, dst),
        _ => (src.or(dst), dst),
    };
    Ok((input.unwrap_or(Region::EMPTY), output.unwrap_or(Region::EMPTY)))
}

/// Block `index` of a region in which block `i` has `counts[i]` elements of `width` bytes.
pub(crate) fn uneven(region: Region, counts: &[usize], index: usize, width: usize) -> Result<Region> {
    region.part(counts[..index].iter().sum::<usize>() * width, counts[index] * width)
}

pub(crate) fn reduce(
    memory: &Memory<'_>,
    op: &Op,
    inputs: impl IntoIterator<Item = Result<Region>>,
    outputs: impl IntoIterator<Item = Result<Region>>,
) -> Result<()> {
    match (op.dtype(), op.reduction()) {
        (Some(_), Some(Reduction::Custom(_))) => {
            Merge::of(op)?.map_or(Ok(()), |merge| memory.merge(&merge, inputs, outputs))
        }
        (Some(dtype), Some(reduction)) => memory.reduce(dtype, reduction, inputs, outputs),
        _ => unsupported(op),
    }
}

/// Bytes that shares and pieces of a tensor never cut: a row of a program's reduction, otherwise a cache line.
pub(crate) fn unit(op: &Op) -> usize {
    const LINE_BYTES: usize = 64;
    match op.reduction() {
        Some(Reduction::Custom(_)) => op.row() * width(op),
        _ => LINE_BYTES,
    }
}

/// Size of an element in bytes.
pub(crate) fn width(op: &Op) -> usize {
    op.dtype().map_or(0, DType::size)
}

/// The error for an operation that this version does not know.
pub(crate) fn unsupported<T>(op: &Op) -> Result<T> {
    Err(Error::Unsupported { backend: NAME, operation: op.kind().to_string(), dtype: op.dtype() })
}
