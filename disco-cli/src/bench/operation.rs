//! What can be measured, and how sizes and bandwidths are counted: as nccl-tests do it (its `doc/PERFORMANCE.md` and the
//! `src/*.cu` of each operation).

use clap::ValueEnum;
use disco::OpKind;

/// An operation to measure.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
#[value(rename_all = "snake_case")]
pub(super) enum Operation {
    /// Every rank gets the reduction of all
    AllReduce,
    /// The root gets the reduction of all
    Reduce,
    /// Each rank gets its block of the reduction of all
    ReduceScatter,
    /// Every rank gets the blocks of all
    AllGather,
    /// Every rank gets what the root has
    Broadcast,
    /// The root gets the blocks of all
    Gather,
    /// Each rank gets its block of what the root has
    Scatter,
    /// Each rank gets a block from each
    AllToAll,
    /// Each rank sends to the next and receives from the one before, at the same time
    SendRecv,
}

impl Operation {
    /// The field's name.
    pub(super) fn name(self) -> &'static str {
        self.kind().map_or("send_recv", OpKind::name)
    }

    /// The collective; none is a pair of transfers.
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

    /// Whether it reduces.
    pub(super) fn reduces(self) -> bool {
        matches!(self, Self::AllReduce | Self::Reduce | Self::ReduceScatter)
    }

    /// Whether it has a root.
    pub(super) fn has_root(self) -> bool {
        matches!(self, Self::Reduce | Self::Broadcast | Self::Gather | Self::Scatter)
    }

    /// Whether source and destination may be one.
    pub(super) fn has_in_place(self) -> bool {
        self != Self::SendRecv
    }

    /// Whether the larger side of a rank has a block for each rank.
    pub(super) fn has_blocks(self) -> bool {
        matches!(self, Self::ReduceScatter | Self::AllGather | Self::Gather | Self::Scatter | Self::AllToAll)
    }

    /// Bus bandwidth over algorithm bandwidth: what the slowest link has to carry of each byte of the size, whatever the
    /// algorithm.
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
    fn bus_factors_are_those_of_nccl_tests() {
        assert_eq!(Operation::AllReduce.bus_factor(4), 1.5);
        assert_eq!(Operation::AllGather.bus_factor(4), 0.75);
        assert_eq!(Operation::Broadcast.bus_factor(4), 1.0);
        assert_eq!(Operation::AllReduce.bus_factor(1), 0.0);
    }
}
