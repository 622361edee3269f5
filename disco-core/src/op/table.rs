//! Table of the operations.

use std::sync::Arc;

use super::Reduction;
use crate::id::Rank;
use crate::tensor::Tensor;

/// Makes [`Op`] and [`OpKind`] from one row per operation: its documentation, variant, name and arguments.
macro_rules! operations {
    ($(
        $(#[$doc:meta])*
        $kind:ident = $name:literal $({ $($(#[$argument_doc:meta])* $argument:ident: $ty:ty,)* })?,
    )*) => {
        /// An operation of a communicator of `n` ranks. Tensors are contiguous and share their storage with the
        /// caller's.
        ///
        /// Without `src` the operation is in place, at the offsets of `MPI_IN_PLACE`. `AllReduce`, `Reduce` and
        /// `Broadcast` are also in place if `src` and `dst` are the same elements. Any other overlap of `src` and `dst`
        /// is an error. "Significant at the root" means that other ranks pass `None`.
        ///
        /// ```
        /// use disco_core::{Communicator, Op, Rank, Reduction, Result, Tensor};
        ///
        /// /// Sums `x` over the ranks, and gives all ranks the `y` of rank 0: one group of two collectives, both in place.
        /// fn sum_and_share(comm: &mut dyn Communicator, x: &Tensor, y: &Tensor) -> Result<()> {
        ///     let sum = Op::AllReduce { src: None, dst: x.clone(), reduction: Reduction::Sum };
        ///     let share = Op::Broadcast { src: None, dst: y.clone(), root: Rank::new(0) };
        ///     comm.enqueue(&[sum, share])
        /// }
        /// ```
        ///
        /// [`CommunicatorExt`](crate::CommunicatorExt) has a method for each operation.
        #[non_exhaustive]
        #[derive(Clone, Debug)]
        pub enum Op {
            $($(#[$doc])* $kind $({ $($(#[$argument_doc])* $argument: $ty,)* })?,)*
        }

        /// The kind of an [`Op`].
        #[non_exhaustive]
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[allow(missing_docs, reason = "named as the variants of `Op`, which are documented")]
        pub enum OpKind {
            $($kind,)*
        }

        impl OpKind {
            /// All kinds, in the order of their numbers.
            pub const ALL: [OpKind; [$($name),*].len()] = [$(Self::$kind),*];

            /// The field's name: `all_reduce`, `send`.
            pub const fn name(self) -> &'static str {
                match self {
                    $(Self::$kind => $name,)*
                }
            }
        }

        impl Op {
            /// The kind of the operation.
            pub const fn kind(&self) -> OpKind {
                match self {
                    $(Op::$kind { .. } => OpKind::$kind,)*
                }
            }
        }
    };
}

operations! {
    /// `dst[i]` becomes the reduction of every rank's `src[i]`. In place: the input is in `dst`.
    AllReduce = "all_reduce" {
        /// `count` elements.
        src: Option<Tensor>,
        /// `count` elements.
        dst: Tensor,
        /// How.
        reduction: Reduction,
    },
    /// As `AllReduce`, with the result on the root only. In place at the root: the input is in `dst`.
    Reduce = "reduce" {
        /// `count` elements; required on ranks other than the root.
        src: Option<Tensor>,
        /// `count` elements; significant at the root.
        dst: Option<Tensor>,
        /// How.
        reduction: Reduction,
        /// The rank that gets the result.
        root: Rank,
    },
    /// Rank `r` gets block `r` of the reduction of all `src`. In place: the input is all of `dst`, and the result is in
    /// its first `count` elements.
    ReduceScatter = "reduce_scatter" {
        /// `n * count` elements.
        src: Option<Tensor>,
        /// `count` elements; `n * count` in place.
        dst: Tensor,
        /// How.
        reduction: Reduction,
    },
    /// `dst` becomes the concatenation of all ranks' `src`, in rank order. In place: rank `r`'s block is already at
    /// `r * count`.
    AllGather = "all_gather" {
        /// `count` elements.
        src: Option<Tensor>,
        /// `n * count` elements.
        dst: Tensor,
    },
    /// `dst` becomes the root's `src`. In place: the root's elements are in `dst`.
    Broadcast = "broadcast" {
        /// `count` elements; significant at the root.
        src: Option<Tensor>,
        /// `count` elements.
        dst: Tensor,
        /// The rank that sends.
        root: Rank,
    },
    /// As `AllGather`, on the root only. In place at the root: its block is already in `dst`.
    Gather = "gather" {
        /// `count` elements; required on ranks other than the root.
        src: Option<Tensor>,
        /// `n * count` elements; significant at the root.
        dst: Option<Tensor>,
        /// The rank that receives.
        root: Rank,
    },
    /// Rank `r` gets block `r` of the root's `src`. In place at the root (`dst` missing): its block stays where it is.
    Scatter = "scatter" {
        /// `n * count` elements; significant at the root.
        src: Option<Tensor>,
        /// `count` elements; required on ranks other than the root.
        dst: Option<Tensor>,
        /// The rank that sends.
        root: Rank,
    },
    /// Block `s` of rank `r`'s `dst` becomes block `r` of rank `s`'s `src`. In place: `dst` is also the input.
    AllToAll = "all_to_all" {
        /// `n * count` elements.
        src: Option<Tensor>,
        /// `n * count` elements.
        dst: Tensor,
    },
    /// As `AllGather`, with `counts[r]` elements from rank `r`.
    AllGatherV = "all_gather_v" {
        /// `counts[rank]` elements.
        src: Option<Tensor>,
        /// The sum of `counts` elements.
        dst: Tensor,
        /// One count per rank, the same on all ranks.
        counts: Arc<[usize]>,
    },
    /// As `AllToAll`, with counts by peer. In place: `dst` is also the input, and both lists of counts are equal.
    AllToAllV = "all_to_all_v" {
        /// The sum of `send_counts` elements.
        src: Option<Tensor>,
        /// Elements for each rank.
        send_counts: Arc<[usize]>,
        /// The sum of `recv_counts` elements.
        dst: Tensor,
        /// Elements from each rank.
        recv_counts: Arc<[usize]>,
    },
    /// Sends to one rank, which posts a matching `Recv`. Operations between two ranks match in order. Outside a group a
    /// send may block until the receiver posts its `Recv`.
    Send = "send" {
        /// Any number of elements.
        src: Tensor,
        /// The receiving rank.
        to: Rank,
    },
    /// Receives from one rank.
    Recv = "recv" {
        /// The same number of elements as were sent, of the same dtype.
        dst: Tensor,
        /// The sending rank.
        from: Rank,
    },
    /// Returns when all ranks have called it.
    Barrier = "barrier",
}

impl OpKind {
    /// Whether the larger of source and destination holds one block for each rank.
    pub const fn has_blocks(self) -> bool {
        matches!(self, Self::ReduceScatter | Self::AllGather | Self::Gather | Self::Scatter | Self::AllToAll)
    }

    /// Whether the operation is point-to-point.
    pub const fn is_point_to_point(self) -> bool {
        matches!(self, Self::Send | Self::Recv)
    }
}

crate::format_as!(Display for OpKind, |it| "{}", it.name());
