//! Times and bandwidths of collectives.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use disco_core::OpKind;

use crate::calls::{Call, Calls};
use crate::format::bandwidth;

/// The collectives that took longest after their last rank had come, the slowest first.
pub(crate) fn slowest<'c, 'a>(calls: &'c Calls<'a>, count: usize) -> Vec<(&'c Call<'a>, u64)> {
    let mut all: Vec<_> = calls.all.iter().filter_map(|call| Some((call, call.duration()?))).collect();
    all.sort_by_key(|(call, time)| (Reverse(*time), call.comm, call.number));
    all.truncate(count);
    all
}

/// The collectives of one kind, size and number of ranks. Times are in nanoseconds, after the last rank had come.
pub(crate) struct BySize {
    pub(crate) kind: OpKind,
    /// Bytes, as `disco bench` counts them.
    pub(crate) size: u64,
    pub(crate) ranks: usize,
    pub(crate) count: usize,
    pub(crate) best: u64,
    pub(crate) median: u64,
    pub(crate) worst: u64,
    pub(crate) total: u64,
}

impl BySize {
    /// Bandwidth of the median, in GB/s.
    pub(crate) fn bandwidth(&self) -> f64 {
        bandwidth(self.size, self.median)
    }

    /// Bandwidth of the fastest one, in GB/s.
    pub(crate) fn best_bandwidth(&self) -> f64 {
        bandwidth(self.size, self.best)
    }
}

/// Finished collectives by kind, ranks and size, without those of groups of operations; the longest total time first.
pub(crate) fn by_size(calls: &Calls<'_>) -> Vec<BySize> {
    let mut times: BTreeMap<(&str, usize, u64), (OpKind, Vec<u64>)> = BTreeMap::new();
    for call in calls.all.iter().filter(|call| call.is_alone() && call.mismatch().is_empty()) {
        let (Some(kind), Some(time), Some(first)) = (call.kind(), call.duration(), call.entries.first()) else {
            continue;
        };
        let (size, ranks) = (calls.size(kind, first.op), calls.members(call.comm).len());
        times.entry((kind.name(), ranks, size)).or_insert_with(|| (kind, Vec::new())).1.push(time);
    }
    let rows = times.into_iter().map(|((_, ranks, size), (kind, mut times))| {
        times.sort_unstable();
        let at = |position: usize| times.get(position).copied().unwrap_or_default();
        let count = times.len();
        let total = times.iter().copied().fold(0, u64::saturating_add);
        BySize { kind, size, ranks, count, best: at(0), median: at(count / 2), worst: at(count - 1), total }
    });
    let mut rows: Vec<_> = rows.collect();
    rows.sort_by_key(|row| Reverse(row.total));
    rows
}
