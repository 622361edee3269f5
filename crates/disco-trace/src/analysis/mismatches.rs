//! Collectives that workers call differently, or not at all.

use std::collections::{BTreeMap, BTreeSet};

use disco_core::WorkerId;

use crate::calls::{Call, Calls};
use crate::trace::Trace;

/// A collective that not all workers call alike.
pub(crate) struct Mismatch<'a> {
    /// Number of recoveries of the session before it.
    pub(crate) epoch: usize,
    pub(crate) comm: &'a str,
    pub(crate) number: u64,
    /// The different calls with their workers; empty if all callers call the same.
    pub(crate) calls: Vec<(String, Vec<WorkerId>)>,
    /// Workers that have called a later collective, but not this one.
    pub(crate) skipped: Vec<WorkerId>,
}

/// All mismatches, by communicator and number.
pub(crate) fn mismatches<'a>(trace: &Trace, calls: &Calls<'a>) -> Vec<Mismatch<'a>> {
    let known: BTreeSet<WorkerId> =
        trace.workers.iter().filter(|it| it.known().is_some()).map(|it| it.worker).collect();
    // The first and the last collective of each worker on each communicator: records before the first are replaced.
    let mut ranges: BTreeMap<(usize, &str, WorkerId), (u64, u64)> = BTreeMap::new();
    for call in &calls.all {
        for entry in &call.entries {
            let range = ranges.entry((call.epoch, call.comm, entry.worker)).or_insert((call.number, call.number));
            range.1 = call.number;
        }
    }
    let skips = |call: &Call<'a>, worker: &WorkerId| {
        let range = ranges.get(&(call.epoch, call.comm, *worker));
        range.is_some_and(|(first, last)| *first < call.number && call.number < *last)
    };
    let all = calls.all.iter().map(|call| {
        let has_called = |worker: &WorkerId| call.entries.iter().any(|entry| entry.worker == *worker);
        let members = calls.members(call.comm);
        // Most collectives have been called by all.
        let members = if call.entries.len() == members.len() { &[] } else { members };
        let members = members.iter().filter(|worker| known.contains(worker));
        let skipped = members.filter(|worker| skips(call, worker) && !has_called(worker));
        let Call { epoch, comm, number, .. } = *call;
        Mismatch { epoch, comm, number, calls: call.mismatch(), skipped: skipped.copied().collect() }
    });
    all.filter(|it| !it.calls.is_empty() || !it.skipped.is_empty()).collect()
}
