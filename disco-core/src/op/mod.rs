//! What a communicator can be asked to do, as data.

mod check;
mod claim;

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

pub use check::{check_group, check_host};
pub use claim::Claims;

use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::id::Rank;
use crate::tensor::Tensor;

/// How elements of several ranks become one.
///
/// Integers wrap; integer `avg` truncates toward zero; for `bool`, sum and max are *or*, prod and min are *and*, avg is
/// unsupported. The numbering is our own: vendors disagree (TVM min = 2, NCCL max = 2), so each backend maps by name.
#[non_exhaustive]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Reduction {
    /// Sum over ranks.
    Sum,
    /// Product over ranks.
    Prod,
    /// Smallest; NaN wins on `local`.
    Min,
    /// Largest; NaN wins on `local`.
    Max,
    /// Sum divided by the number of ranks.
    Avg,
}

impl Reduction {
    /// All reductions, in wire order.
    pub const ALL: [Reduction; 5] = [Self::Sum, Self::Prod, Self::Min, Self::Max, Self::Avg];

    /// The field's name: `sum`, `prod`, `min`, `max`, `avg`.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Sum => "sum",
            Self::Prod => "prod",
            Self::Min => "min",
            Self::Max => "max",
            Self::Avg => "avg",
        }
    }
}

impl fmt::Display for Reduction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Reduction {
    type Err = Error;

    fn from_str(name: &str) -> Result<Self> {
        let found = Self::ALL.into_iter().find(|reduction| reduction.name() == name);
        found.ok_or_else(|| Error::invalid(format!("unknown reduction `{name}`; known are sum, prod, min, max, avg")))
    }
}

/// One operation of a communicator of `n` ranks. Tensors are contiguous and share their storage with the caller's.
///
/// A missing `src` is in place, at the offsets of `MPI_IN_PLACE`; other overlap of `src` and `dst` is refused, but for
/// the very same elements in `AllReduce`, `Reduce` and `Broadcast`, which is in place too. "Significant at the root" means
/// that other ranks pass `None`.
#[non_exhaustive]
#[derive(Clone, Debug)]
pub enum Op {
    /// `dst[i]` becomes the reduction of every rank's `src[i]`. In place: the input is in `dst`.
    AllReduce {
        /// `count` elements.
        src: Option<Tensor>,
        /// `count` elements.
        dst: Tensor,
        /// How.
        reduction: Reduction,
    },
    /// As `AllReduce`, with the result on the root only. In place at the root: the input is in `dst`.
    Reduce {
        /// `count` elements; required on ranks other than the root.
        src: Option<Tensor>,
        /// `count` elements; significant at the root.
        dst: Option<Tensor>,
        /// How.
        reduction: Reduction,
        /// Who gets the result.
        root: Rank,
    },
    /// Block `r` of the reduction over all `src` goes to rank `r`. In place: the input is all of `dst`, the result its first
    /// `count` elements.
    ReduceScatter {
        /// `n * count` elements.
        src: Option<Tensor>,
        /// `count` elements; `n * count` in place.
        dst: Tensor,
        /// How.
        reduction: Reduction,
    },
    /// `dst` becomes all ranks' `src`, by rank. In place: rank `r`'s block is already at `r * count`.
    AllGather {
        /// `count` elements.
        src: Option<Tensor>,
        /// `n * count` elements.
        dst: Tensor,
    },
    /// `dst` becomes the root's `src`. In place: the root's elements are in `dst`.
    Broadcast {
        /// `count` elements; significant at the root.
        src: Option<Tensor>,
        /// `count` elements.
        dst: Tensor,
        /// Who sends.
        root: Rank,
    },
    /// As `AllGather`, on the root only. In place at the root: its block is already in `dst`.
    Gather {
        /// `count` elements; required on ranks other than the root.
        src: Option<Tensor>,
        /// `n * count` elements; significant at the root.
        dst: Option<Tensor>,
        /// Who receives.
        root: Rank,
    },
    /// Rank `r` gets block `r` of the root's `src`. In place at the root (`dst` missing): its block stays where it is.
    Scatter {
        /// `n * count` elements; significant at the root.
        src: Option<Tensor>,
        /// `count` elements; required on ranks other than the root.
        dst: Option<Tensor>,
        /// Who sends.
        root: Rank,
    },
    /// Block `s` of rank `r`'s `dst` becomes block `r` of rank `s`'s `src`. In place: `dst` is the input too.
    AllToAll {
        /// `n * count` elements.
        src: Option<Tensor>,
        /// `n * count` elements.
        dst: Tensor,
    },
    /// As `AllGather`, with `counts[r]` elements from rank `r`.
    AllGatherV {
        /// `counts[rank]` elements.
        src: Option<Tensor>,
        /// The sum of `counts` elements.
        dst: Tensor,
        /// One count a rank, alike on all ranks.
        counts: Arc<[usize]>,
    },
    /// As `AllToAll`, with counts by peer. In place: `dst` is the input too, and both lists of counts are alike.
    AllToAllV {
        /// The sum of `send_counts` elements.
        src: Option<Tensor>,
        /// Elements for each rank.
        send_counts: Arc<[usize]>,
        /// The sum of `recv_counts` elements.
        dst: Tensor,
        /// Elements from each rank.
        recv_counts: Arc<[usize]>,
    },
    /// Sends to one rank, which posts a matching `Recv`; operations between two ranks match in order. Outside a group
    /// it may block until then.
    Send {
        /// Any number of elements.
        src: Tensor,
        /// To whom.
        to: Rank,
    },
    /// Receives from one rank.
    Recv {
        /// As many elements as were sent, of the same dtype.
        dst: Tensor,
        /// From whom.
        from: Rank,
    },
    /// Returns when all ranks have called it.
    Barrier,
}

/// Which [`Op`], without its arguments.
#[non_exhaustive]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[allow(missing_docs, reason = "named as the variants of `Op`, which are documented")]
pub enum OpKind {
    AllReduce,
    Reduce,
    ReduceScatter,
    AllGather,
    Broadcast,
    Gather,
    Scatter,
    AllToAll,
    AllGatherV,
    AllToAllV,
    Send,
    Recv,
    Barrier,
}

impl OpKind {
    /// All kinds.
    pub const ALL: [OpKind; 13] = [
        Self::AllReduce,
        Self::Reduce,
        Self::ReduceScatter,
        Self::AllGather,
        Self::Broadcast,
        Self::Gather,
        Self::Scatter,
        Self::AllToAll,
        Self::AllGatherV,
        Self::AllToAllV,
        Self::Send,
        Self::Recv,
        Self::Barrier,
    ];

    /// The field's name: `all_reduce`, `send`.
    pub const fn name(self) -> &'static str {
        match self {
            Self::AllReduce => "all_reduce",
            Self::Reduce => "reduce",
            Self::ReduceScatter => "reduce_scatter",
            Self::AllGather => "all_gather",
            Self::Broadcast => "broadcast",
            Self::Gather => "gather",
            Self::Scatter => "scatter",
            Self::AllToAll => "all_to_all",
            Self::AllGatherV => "all_gather_v",
            Self::AllToAllV => "all_to_all_v",
            Self::Send => "send",
            Self::Recv => "recv",
            Self::Barrier => "barrier",
        }
    }

    /// Whether it concerns two ranks only.
    pub const fn is_point_to_point(self) -> bool {
        matches!(self, Self::Send | Self::Recv)
    }
}

impl fmt::Display for OpKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl Op {
    /// Which operation it is.
    pub const fn kind(&self) -> OpKind {
        match self {
            Op::AllReduce { .. } => OpKind::AllReduce,
            Op::Reduce { .. } => OpKind::Reduce,
            Op::ReduceScatter { .. } => OpKind::ReduceScatter,
            Op::AllGather { .. } => OpKind::AllGather,
            Op::Broadcast { .. } => OpKind::Broadcast,
            Op::Gather { .. } => OpKind::Gather,
            Op::Scatter { .. } => OpKind::Scatter,
            Op::AllToAll { .. } => OpKind::AllToAll,
            Op::AllGatherV { .. } => OpKind::AllGatherV,
            Op::AllToAllV { .. } => OpKind::AllToAllV,
            Op::Send { .. } => OpKind::Send,
            Op::Recv { .. } => OpKind::Recv,
            Op::Barrier => OpKind::Barrier,
        }
    }

    /// What it reads, if not in place.
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

    /// What it writes (and reads, in place).
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
    pub fn dtype(&self) -> Option<DType> {
        self.src().or(self.dst()).map(Tensor::dtype)
    }

    /// What all ranks of a collective must agree on, as text: `all_reduce sum f32 x 64`, `broadcast f32 x 64 from rank 0`.
    /// `size` is the communicator's. V-forms leave out what may differ.
    pub fn signature(&self, size: usize) -> String {
        let mut text = self.kind().name().to_owned();
        if let Some(reduction) = self.reduction() {
            text = format!("{text} {reduction}");
        }
        if let Some(dtype) = self.dtype() {
            text = format!("{text} {dtype}");
        }
        match self {
            Op::AllGatherV { counts, .. } => text = format!("{text} x {counts:?}"),
            Op::AllToAllV { .. } | Op::Barrier => {}
            _ => text = format!("{text} x {}", self.count(size)),
        }
        match self.root() {
            Some(root) => format!("{text}, root {root}"),
            None => text,
        }
    }

    /// Elements of one rank's block: all of them, where an operation has no blocks. Of the V-forms, what this rank sends,
    /// which may differ from rank to rank.
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
