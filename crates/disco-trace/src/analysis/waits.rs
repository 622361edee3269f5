//! Workers for which other workers waited.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use disco_core::WorkerId;

use crate::calls::Calls;
use crate::trace::Trace;

/// How often other workers waited for a worker.
#[derive(Clone, Copy, Default)]
pub(crate) struct Late {
    /// Number of operations in which another rank waited for this worker last.
    pub(crate) count: u64,
    /// How long, in nanoseconds, over all ranks.
    pub(crate) time: u64,
}

/// The workers that came last and for which other workers waited, as far as the backend names them; the longest time first.
pub(crate) fn latest(trace: &Trace, calls: &Calls<'_>) -> Vec<(WorkerId, Late)> {
    let mut late: BTreeMap<WorkerId, Late> = BTreeMap::new();
    let records = trace.workers.iter().filter_map(|it| it.known()).flat_map(|recording| &recording.records);
    for op in records.filter_map(|record| record.op.as_ref()).filter(|op| op.waited > 0) {
        if let Some(last) = op.last.and_then(|last| calls.worker(op, last)) {
            let late = late.entry(last).or_default();
            late.count += 1;
            late.time = late.time.saturating_add(op.waited);
        }
    }
    let mut late: Vec<_> = late.into_iter().collect();
    late.sort_by_key(|(worker, late)| (Reverse(late.time), *worker));
    late
}
