//! The parts of each worker's time.

use disco_core::WorkerId;
use disco_core::activity::{Record, RecordKind, Recording};

use crate::trace::{Trace, end};

/// The time of one worker, in nanoseconds. The parts sum up to `recorded`.
pub(crate) struct Share {
    pub(crate) worker: WorkerId,
    /// From the first record to the copy of the records.
    pub(crate) recorded: u64,
    /// Inside of operations, waiting for other ranks, as far as the backend tells.
    pub(crate) waiting: u64,
    /// Inside of operations otherwise.
    pub(crate) operations: u64,
    /// Inside of commands, but in no operation.
    pub(crate) code: u64,
    /// Between commands.
    pub(crate) rest: u64,
}

/// The times of the workers that have a timeline.
pub(crate) fn shares(trace: &Trace) -> Vec<Share> {
    let known = trace.workers.iter().filter_map(|it| Some((it.worker, it.known()?)));
    let is_command = |record: &Record| record.kind == RecordKind::Command;
    let with_timeline = known.filter(|(_, recording)| recording.records.iter().any(is_command));
    with_timeline.map(|(worker, recording)| share(worker, recording)).collect()
}

fn share(worker: WorkerId, recording: &Recording) -> Share {
    let records = &recording.records;
    let first = records.iter().map(|record| record.start).min().unwrap_or(recording.time);
    let recorded = records.iter().map(|record| end(recording, record)).fold(recording.time, u64::max) - first;
    let total = |is: &dyn Fn(RecordKind) -> bool| {
        let times = records.iter().filter(|record| is(record.kind));
        times.map(|record| end(recording, record) - record.start).fold(0, u64::saturating_add)
    };
    let operations = total(&|kind| matches!(kind, RecordKind::Op(_))).min(recorded);
    let commands = total(&|kind| kind == RecordKind::Command).clamp(operations, recorded);
    let waited = records.iter().filter_map(|record| Some(record.op.as_ref()?.waited));
    let waiting = waited.fold(0, u64::saturating_add).min(operations);
    Share {
        worker,
        recorded,
        waiting,
        operations: operations - waiting,
        code: commands - operations,
        rest: recorded - commands,
    }
}
