//! The calls of workers, taken from their records while the program runs, and at the end.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use disco_core::activity::{OpDetails, OpState, Record, RecordKind, Recording};
use disco_core::session::Recordings;
use disco_core::{WorkerId, sync};

use super::line::{Call, CommandKind, End, Line, Operation, OperationScope, Worker, cut};
use super::writer::Source;

/// Shortest pause between two collections.
const INTERVAL: Duration = Duration::from_millis(100);
/// The pause after a collection grows by this multiple of the time that the collection has taken.
const REST: u32 = 4;
/// Longest time that a collection waits for workers of other machines.
const LIMIT: Duration = Duration::from_millis(200);
/// Number of each worker's records that a collection asks for at least.
const MIN_RECORDS: u64 = 1024;

/// Largest number of operations in one line.
const MAX_OPS: usize = 1 << 13;

/// The last records of the workers and the last line, once the session has ended.
pub(super) type Last = Arc<Mutex<Option<(Recordings, End)>>>;

/// The records that have been written.
#[derive(Default)]
struct Calls {
    written: BTreeMap<WorkerId, Written>,
}

/// The last record of a worker that was written.
#[derive(Clone, Copy, Default)]
struct Written {
    number: u64,
    /// The command of the record.
    command: u64,
}

/// Writes the new records of the workers from time to time, and `last` at the end of the log.
pub(super) fn source(
    last: Last,
    mut collect: impl FnMut(usize, Duration) -> Option<Recordings> + Send + 'static,
) -> Source {
    let mut calls = Calls::default();
    let (mut due, mut expected) = (Instant::now() + INTERVAL, 0);
    Box::new(move |is_last, to| {
        let begun = Instant::now();
        if is_last {
            if let Some((recordings, end)) = sync::lock(&last).take() {
                calls.add(&recordings, true, to);
                to(&Line::End(end));
            }
        } else if begun >= due {
            expected = calls.collect(expected, &mut collect, to).unwrap_or(0);
            due = begun + begun.elapsed() * (1 + REST) + INTERVAL;
        }
    })
}

impl Calls {
    /// Adds the new records, which are about `expected` of each worker. Returns their largest number.
    fn collect(
        &mut self,
        expected: u64,
        collect: &mut impl FnMut(usize, Duration) -> Option<Recordings>,
        to: &mut dyn FnMut(&Line),
    ) -> Option<u64> {
        let last = usize::try_from(2 * expected + MIN_RECORDS).unwrap_or(usize::MAX);
        let mut recordings = collect(last, LIMIT)?;
        if self.lacks_records(&recordings) {
            recordings = collect(usize::MAX, LIMIT)?;
        }
        Some(self.add(&recordings, false, to))
    }

    /// Whether recordings lack records between the written ones and their first one.
    fn lacks_records(&self, recordings: &Recordings) -> bool {
        recordings.iter().any(|(worker, recording)| {
            let written = self.written.get(worker).copied().unwrap_or_default();
            let first = recording.as_ref().ok().and_then(|recording| recording.records.first());
            first.is_some_and(|first| written.missing_before(first) > 0)
        })
    }

    /// Adds the lines of calls that have ended, or of all calls if these are the `last` recordings. Returns the largest
    /// number of records of one worker.
    fn add(&mut self, recordings: &Recordings, is_last: bool, to: &mut dyn FnMut(&Line)) -> u64 {
        let mut most = 0;
        for (worker, recording) in recordings {
            match recording {
                Ok(recording) => most = most.max(self.add_worker(*worker, recording, is_last, to)),
                Err(error) if is_last => to(&Line::Worker(Worker::new(*worker, 0, Some(cut(error.to_string()))))),
                // A later collection may get these records.
                Err(_) => {}
            }
        }
        most
    }

    fn add_worker(&mut self, worker: WorkerId, recording: &Recording, is_last: bool, to: &mut dyn FnMut(&Line)) -> u64 {
        let written = self.written.entry(worker).or_default();
        let records = recording.records.iter().skip_while(|record| written.includes(record));
        // A call that ran when the copy was begun is left for the next time: the copy may lack its last operations.
        let is_open =
            |record: &Record| record.kind == RecordKind::Command && record.end.is_none_or(|end| end > recording.time);
        let records: Vec<&Record> = records.take_while(|record| is_last || !is_open(record)).collect();
        let (Some(first), Some(last)) = (records.first(), records.last()) else { return 0 };
        let missing = written.missing_before(first);
        *written = Written { number: last.number, command: last.command };
        to(&Line::Worker(Worker::new(worker, missing, None)));
        let mut call: Option<(Call, u64)> = None;
        for record in &records {
            match record.kind {
                RecordKind::Command => {
                    call.take().into_iter().for_each(|(call, _)| to(&Line::Call(call)));
                    let failed = record.state == OpState::Failed;
                    let (number, ns) = (record.command, record.end.map(|end| end - record.start));
                    call = is_call(record).then(|| (Call { number, ns, failed, ..Call::default() }, record.start));
                }
                RecordKind::Op(kind) => {
                    let open = call.as_mut().filter(|(call, _)| call.number == record.command);
                    if let (Some((call, last)), Some(op)) = (open, &record.op) {
                        if call.ops.len() == MAX_OPS {
                            let ops = std::mem::take(&mut call.ops);
                            to(&Line::Call(Call { ops, ns: None, more: true, ..call.clone() }));
                        }
                        let end = record.end.unwrap_or(record.start);
                        let after_ns = record.start.saturating_sub(*last);
                        call.ops.push(operation(kind.name(), op, record, after_ns, end - record.start));
                        // The operations behind the first one of a group have no length.
                        *last = end.max(*last);
                    }
                }
                _ => {}
            }
        }
        call.into_iter().for_each(|(call, _)| to(&Line::Call(call)));
        records.len() as u64
    }
}

impl Written {
    /// Whether this record, or a later one of the same worker, was written. The records of a worker that replaces a lost one
    /// are numbered from 1 again, and are those of later commands.
    fn includes(self, record: &Record) -> bool {
        record.number <= self.number && record.command <= self.command
    }

    /// Number of records between the written ones and `next`.
    fn missing_before(self, next: &Record) -> u64 {
        let before = if next.number > self.number { self.number } else { 0 };
        if self.includes(next) { 0 } else { next.number.saturating_sub(before + 1) }
    }
}

/// Whether the record is that of a call: its name is that of a function, not that of another command.
fn is_call(record: &Record) -> bool {
    record.name.as_ref().is_none_or(|name| CommandKind::ALL_BUT_CALLS.iter().all(|kind| kind.name() != &**name))
}

fn operation(kind: &str, op: &OpDetails, record: &Record, after_ns: u64, ns: u64) -> Operation {
    let scope = match (op.is_of_split(), op.is_of_all()) {
        (true, _) => OperationScope::Split,
        (_, true) => OperationScope::World,
        _ => OperationScope::Group,
    };
    Operation {
        kind: kind.to_owned(),
        scope,
        dtype: op.dtype.map(|dtype| dtype.name().to_owned()),
        count: op.count,
        reduction: op.reduction.map(|reduction| reduction.name().to_owned()),
        root: op.root.map(|root| root.index() as u32),
        after_ns,
        ns,
        joins: op.behind > 0,
        failed: record.state != OpState::Done,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A recording at `time` of calls, each with the number of its record and its command and with its end.
    fn recording(time: u64, calls: &[(u64, u64, Option<u64>)]) -> Recording {
        let mut recording = Recording::default();
        recording.time = time;
        recording.records.extend(calls.iter().map(|(number, command, end)| {
            let mut record = Record::new(*number, RecordKind::Command, 0);
            (record.name, record.command, record.end) = (Some("train.step".into()), *command, *end);
            record
        }));
        recording
    }

    /// The numbers of the missing records and of the calls that `recording` adds.
    fn added(calls: &mut Calls, recording: Recording, is_last: bool) -> (Vec<u64>, Vec<u64>) {
        let (mut missing, mut added) = (Vec::new(), Vec::new());
        calls.add(&vec![(WorkerId::new(1), Ok(recording))], is_last, &mut |line| match line {
            Line::Worker(worker) => missing.push(worker.replaced),
            Line::Call(call) => added.push(call.number),
            other => panic!("{other:?}"),
        });
        (missing, added)
    }

    #[test]
    fn each_call_is_written_once_after_its_end() {
        let mut calls = Calls::default();
        let first = [(3, 7, Some(10)), (4, 8, Some(25))];
        assert_eq!(added(&mut calls, recording(20, &first), false), (vec![2], vec![7]), "8 ended after the copy began");
        let second = [(3, 7, Some(10)), (4, 8, Some(25)), (5, 9, None)];
        assert_eq!(added(&mut calls, recording(30, &second), false), (vec![0], vec![8]), "9 runs");
        assert_eq!(added(&mut calls, recording(40, &second), true), (vec![0], vec![9]));
        assert_eq!(added(&mut calls, recording(50, &second), true), (vec![], vec![]));
    }

    #[test]
    fn calls_of_a_worker_that_replaces_a_lost_one_are_written() {
        let mut calls = Calls::default();
        let lost = recording(20, &[(1, 7, Some(10)), (2, 8, Some(11)), (3, 9, Some(12))]);
        assert_eq!(added(&mut calls, lost, false), (vec![0], vec![7, 8, 9]));
        let new = [(1, 12, Some(30)), (2, 13, Some(31))];
        assert_eq!(added(&mut calls, recording(40, &new), false), (vec![0], vec![12, 13]));
        let later = [(2, 13, Some(31)), (3, 14, Some(41)), (4, 15, Some(42))];
        let later = recording(50, &later);
        assert!(!calls.lacks_records(&vec![(WorkerId::new(1), Ok(later.clone()))]));
        assert_eq!(added(&mut calls, later, false), (vec![0], vec![14, 15]));
        assert!(calls.lacks_records(&vec![(WorkerId::new(1), Ok(recording(60, &[(6, 17, Some(55))])))]));
    }
}
