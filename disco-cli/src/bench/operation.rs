//! The operations of `disco bench`. Sizes and bandwidths are defined as in nccl-tests (`doc/PERFORMANCE.md`, and
//! `src/*.cu` of each operation).

use clap::ValueEnum;
use disco::OpKind;

/// An operation to measure.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
#[value(rename_all = "snake_case")]
pub(super) enum Operation {
    /// Every rank gets the reduction over all ranks
    AllReduce,
    /// The root gets the reduction over all ranks
    Reduce,
    /// Each rank gets its block of the reduction over all ranks
    ReduceScatter,
    /// Every rank gets the blocks of all ranks
    AllGather,
    /// Every rank gets the root's tensor
    Broadcast,
    /// The root gets the blocks of all ranks
    Gather,
    /// Each rank gets its block of the root's tensor
    Scatter,
    /// Each rank gets one block from every rank
    AllToAll,
    /// Each rank sends to the next rank and at the same time receives from the previous one
    SendRecv,
}

impl Operation {
    /// The name on the command line and in reports.
    pub(super) fn name(self) -> &'static str {
        self.kind().map_or("send_recv", OpKind::name)
    }

    /// The collective, or `None` for [`Self::SendRecv`].
    pub(super) fn kind(self) -> Option<OpKind> {
        Some(match self {
            Self::AllReduce => OpKind::AllReduce,
            Self::Reduce => OpKind::Reduce,
            Self::ReduceScatter => OpKind::ReduceScatter,
            Self::AllGather => OpKind::AllGather,
            Self::Broadcast => OpKind::Broadcast,
            Self::Gather => OpKind::Gather,
            Self::Scatter => OpKind::Scatter,
            Self::AllToAll => OpKind::AllToAll,
            Self::SendRecv => return None,
        })
    }

    /// Whether the operation takes a reduction.
    pub(super) fn reduces(self) -> bool {
        matches!(self, Self::AllReduce | Self::Reduce | Self::ReduceScatter)
    }

    /// Whether the operation has a root.
    pub(super) fn has_root(self) -> bool {
        matches!(self, Self::Reduce | Self::Broadcast | Self::Gather | Self::Scatter)
    }

    /// Whether the operation has an in-place form.
    pub(super) fn has_in_place(self) -> bool {
        self != Self::SendRecv
    }

    /// Whether the larger of source and destination holds one block for each rank.
    pub(super) fn has_blocks(self) -> bool {
        self.kind().is_some_and(OpKind::has_blocks)
    }

    /// Ratio of bus bandwidth to algorithm bandwidth: the bytes that the bottleneck link carries per byte of the size,
    /// with any algorithm.
    pub(super) fn bus_factor(self, ranks: usize) -> f64 {
        let n = ranks as f64;
        match self {
            Self::AllReduce => 2.0 * (n - 1.0) / n,
            _ if self.has_blocks() => (n - 1.0) / n,
            _ => 1.0,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::Operation;

    #[test]
    fn bus_factors_equal_those_of_nccl_tests() {
        assert_eq!(Operation::AllReduce.bus_factor(4), 1.5);
        assert_eq!(Operation::AllGather.bus_factor(4), 0.75);
        assert_eq!(Operation::Broadcast.bus_factor(4), 1.0);
        assert_eq!(Operation::AllReduce.bus_factor(1), 0.0);
    }
}
