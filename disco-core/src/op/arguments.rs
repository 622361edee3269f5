//! Properties of an operation that follow from its arguments.

use super::{Op, OpKind, Reduction};
use crate::dtype::DType;
use crate::id::Rank;
use crate::tensor::Tensor;

impl Op {
    /// The tensor that the operation reads; none if it runs in place.
    pub fn src(&self) -> Option<&Tensor> {
        match self {
            Op::AllReduce { src, .. }
            | Op::Reduce { src, .. }
            | Op::ReduceScatter { src, .. }
            | Op::AllGather { src, .. }
            | Op::Broadcast { src, .. }
            | Op::Gather { src, .. }
            | Op::Scatter { src, .. }
            | Op::AllToAll { src, .. }
            | Op::AllGatherV { src, .. }
            | Op::AllToAllV { src, .. } => src.as_ref(),
            Op::Send { src, .. } => Some(src),
            Op::Recv { .. } | Op::Barrier => None,
        }
    }

    /// The tensor that the operation writes, and also reads if it runs in place.
    pub fn dst(&self) -> Option<&Tensor> {
        match self {
            Op::AllReduce { dst, .. }
            | Op::ReduceScatter { dst, .. }
            | Op::AllGather { dst, .. }
            | Op::Broadcast { dst, .. }
            | Op::AllToAll { dst, .. }
            | Op::AllGatherV { dst, .. }
            | Op::AllToAllV { dst, .. }
            | Op::Recv { dst, .. } => Some(dst),
            Op::Reduce { dst, .. } | Op::Gather { dst, .. } | Op::Scatter { dst, .. } => dst.as_ref(),
            Op::Send { .. } | Op::Barrier => None,
        }
    }

    /// The root of a rooted operation.
    pub const fn root(&self) -> Option<Rank> {
        match self {
            Op::Reduce { root, .. }
            | Op::Broadcast { root, .. }
            | Op::Gather { root, .. }
            | Op::Scatter { root, .. } => Some(*root),
            _ => None,
        }
    }

    /// The other rank of a send or a receive.
    pub const fn peer(&self) -> Option<Rank> {
        match self {
            Op::Send { to, .. } => Some(*to),
            Op::Recv { from, .. } => Some(*from),
            _ => None,
        }
    }

    /// The reduction of a reducing operation.
    pub const fn reduction(&self) -> Option<Reduction> {
        match self {
            Op::AllReduce { reduction, .. } | Op::Reduce { reduction, .. } | Op::ReduceScatter { reduction, .. } => {
                Some(*reduction)
            }
            _ => None,
        }
    }

    /// Element type; none for a barrier.
    #[inline]
    pub fn dtype(&self) -> Option<DType> {
        self.src().or(self.dst()).map(Tensor::dtype)
    }

    /// The properties that must match on all ranks of a collective, as text: `all_reduce sum f32 x 64`,
    /// `broadcast f32 x 64, root rank 0`, `all_reduce disco.argmax f32 x 64 in rows of 2`. `size` is the size of the communicator. V-forms leave out counts that may
    /// differ between ranks.
    pub fn signature(&self, size: usize) -> String {
        let extent = match self {
            Op::AllGatherV { counts, .. } => Some(format!("{counts:?}")),
            Op::AllToAllV { .. } => None,
            _ if matches!(self.reduction(), Some(Reduction::Custom(_))) => {
                Some(format!("{} in rows of {}", self.count(size), self.row()))
            }
            _ => Some(self.count(size).to_string()),
        };
        signature(self.kind(), self.reduction().map(Reduction::name), self.dtype(), extent, self.root())
    }

    /// Number of elements of one rank's block, or of all elements if the operation has no blocks. For the V-forms, the
    /// number that this rank sends, which may differ between ranks.
    #[inline]
    pub fn count(&self, size: usize) -> usize {
        let size = size.max(1);
        let len = |tensor: &Option<Tensor>| tensor.as_ref().map_or(0, Tensor::elements);
        match self {
            Op::ReduceScatter { src: None, dst, .. } => dst.elements() / size,
            Op::ReduceScatter { dst, .. } => dst.elements(),
            Op::AllGather { dst, .. } | Op::AllToAll { dst, .. } => dst.elements() / size,
            Op::Gather { src, dst, .. } if src.is_none() => len(dst) / size,
            Op::Scatter { src, dst, .. } if dst.is_none() => len(src) / size,
            Op::Scatter { dst, .. } => len(dst),
            _ => self.src().or(self.dst()).map_or(0, Tensor::elements),
        }
    }
}

/// The text of an operation's kind and arguments. `extent` is its number of elements; `root` is the peer of a send or a
/// receive.
pub(crate) fn signature(
    kind: OpKind,
    reduction: Option<&str>,
    dtype: Option<DType>,
    extent: Option<String>,
    root: Option<Rank>,
) -> String {
    let mut text = kind.name().to_owned();
    if let Some(reduction) = reduction {
        text += &format!(" {reduction}");
    }
    match (dtype, extent) {
        (Some(dtype), Some(extent)) => text += &format!(" {dtype} x {extent}"),
        (Some(dtype), None) => text += &format!(" {dtype}"),
        (None, _) => {}
    }
    match root {
        Some(root) if kind.is_point_to_point() => text + &format!(", peer {root}"),
        Some(root) => text + &format!(", root {root}"),
        None => text,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_signature_names_reduction_dtype_count_and_root() {
        let tensor = || Tensor::zeros(DType::F32, [64]).unwrap();
        let broadcast = Op::Broadcast { src: None, dst: tensor(), root: Rank::new(0) };
        assert_eq!(broadcast.signature(4), "broadcast f32 x 64, root rank 0");
        let reduce = Op::AllReduce { src: None, dst: tensor(), reduction: Reduction::Sum };
        assert_eq!(reduce.signature(4), "all_reduce sum f32 x 64");
        let dst = Tensor::zeros(DType::F32, [16, 4]).unwrap();
        let own = Op::AllReduce { src: None, dst, reduction: Reduction::Custom("x.y") };
        assert_eq!(own.signature(4), "all_reduce x.y f32 x 64 in rows of 4");
        assert_eq!(Op::Barrier.signature(4), "barrier");
    }
}
