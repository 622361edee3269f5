//! What a rank has to do with an operation, for all schedules.

use disco_core::{DType, Error, Op, Result};
use smallvec::SmallVec;

use crate::NAME;
use crate::active_call::{Memory, Region};

/// From how many bytes on, in all tensors together, results go past the caches.
pub(crate) const STREAMING_MIN_BYTES: usize = 12 << 20;

/// As many as that need no allocation.
pub(crate) type InlineVec<T> = SmallVec<[T; 16]>;

/// What a rank puts in and where its result goes; in place the part of `dst` that `MPI_IN_PLACE` means. Empty where a
/// tensor is not significant.
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

/// Block `index` where block `i` has `counts[i]` elements.
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
        (Some(dtype), Some(reduction)) => memory.reduce(dtype, reduction, inputs, outputs),
        _ => unsupported(op),
    }
}

/// Bytes of an element.
pub(crate) fn width(op: &Op) -> usize {
    op.dtype().map_or(0, DType::size)
}

/// For operations that a later `disco-core` may know.
pub(crate) fn unsupported<T>(op: &Op) -> Result<T> {
    Err(Error::Unsupported { backend: NAME, operation: op.kind().to_string(), dtype: op.dtype() })
}
