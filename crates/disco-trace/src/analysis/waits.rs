//! Who waited for whom.

use std::collections::BTreeMap;

use disco_core::WorkerId;

use crate::calls::Calls;
use crate::trace::Trace;

/// Waits of workers for the rank that came last, as far as the backend names it.
pub(crate) struct Waits {
    /// Nanoseconds by the worker that waited and the worker that it waited for last.
    pub(crate) times: BTreeMap<(WorkerId, WorkerId), u64>,
    /// Nanoseconds by worker, in operations of which the backend does not name the last rank.
    pub(crate) unknown: BTreeMap<WorkerId, u64>,
    late: BTreeMap<WorkerId, Late>,
}

/// How often other workers waited for a worker.
#[derive(Clone, Copy, Default)]
pub(crate) struct Late {
    /// Number of operations in which another rank waited for this worker last.
    pub(crate) count: u64,
    /// How long, in nanoseconds, over all ranks.
    pub(crate) time: u64,
}

impl Waits {
    pub(crate) fn of(trace: &Trace, calls: &Calls<'_>) -> Self {
        let mut waits = Self { times: BTreeMap::new(), unknown: BTreeMap::new(), late: BTreeMap::new() };
        for it in &trace.workers {
            let records = it.known().map_or(&[][..], |recording| &recording.records);
            for op in records.iter().filter_map(|record| record.op.as_ref()).filter(|op| op.waited > 0) {
                match op.last.and_then(|last| calls.worker(op, last)) {
                    Some(last) => waits.add(it.worker, last, op.waited),
                    None => add(waits.unknown.entry(it.worker).or_default(), op.waited),
                }
            }
        }
        waits
    }

    fn add(&mut self, worker: WorkerId, last: WorkerId, time: u64) {
        add(self.times.entry((worker, last)).or_default(), time);
        let late = self.late.entry(last).or_default();
        late.count += 1;
        add(&mut late.time, time);
    }

    /// The workers for which other workers waited, the longest time first.
    pub(crate) fn latest(&self) -> Vec<(WorkerId, Late)> {
        let mut late: Vec<_> = self.late.iter().map(|(worker, late)| (*worker, *late)).collect();
        late.sort_by_key(|(worker, late)| (std::cmp::Reverse(late.time), *worker));
        late
    }
}

fn add(sum: &mut u64, time: u64) {
    *sum = sum.saturating_add(time);
}
