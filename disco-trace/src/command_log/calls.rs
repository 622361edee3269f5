//! The calls of workers, from their records: collected while the program runs, and at the end.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use disco_core::activity::{OpDetails, OpState, Record, RecordKind, Recording};
use disco_core::session::Recordings;
use disco_core::{WorkerId, sync};

use super::line::{Call, CommandKind, End, Line, Operation, OperationScope, Worker, cut};
use super::writer::Source;

/// Least time between two collections.
const INTERVAL: Duration = Duration::from_millis(100);
/// Time between two collections as a multiple of the time that the first one takes.
const REST: u32 = 4;
/// Limit of a collection, for workers of other machines.
const LIMIT: Duration = Duration::from_millis(200);
/// Least number of records that are asked for.
const MIN_RECORDS: u64 = 1024;

/// What is left for the end of a log.
pub(super) type Last = Arc<Mutex<Option<(Recordings, End)>>>;

/// The records that have been written.
#[derive(Default)]
struct Calls {
    /// For each worker the number of its last record that was written.
    written: BTreeMap<WorkerId, u64>,
}

/// Writes from time to time what workers have recorded since the last time, and at the end `last`.
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
    /// Adds what is new. About `expected` records of each worker are.
    fn collect(
        &mut self,
        expected: u64,
        collect: &mut impl FnMut(usize, Duration) -> Option<Recordings>,
        to: &mut dyn FnMut(&Line),
    ) -> Option<u64> {
        let last = usize::try_from(2 * expected + MIN_RECORDS).unwrap_or(usize::MAX);
        let mut recordings = collect(last, LIMIT)?;
        if self.is_missing_some(&recordings) {
            recordings = collect(usize::MAX, LIMIT)?;
        }
        Some(self.add(&recordings, false, to))
    }

    /// Whether recordings lack records between those that were written and their first one.
    fn is_missing_some(&self, recordings: &Recordings) -> bool {
        let first = |recording: &Recording| recording.records.first().map_or(0, |record| record.number);
        recordings.iter().any(|(worker, recording)| {
            let written = self.written.get(worker).copied().unwrap_or(0);
            recording.as_ref().is_ok_and(|recording| first(recording) > written + 1)
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
                // It may answer later.
                Err(_) => {}
            }
        }
        most
    }

    fn add_worker(&mut self, worker: WorkerId, recording: &Recording, is_last: bool, to: &mut dyn FnMut(&Line)) -> u64 {
        let written = self.written.entry(worker).or_default();
        let records = recording.records.iter().skip_while(|record| record.number <= *written);
        // A call that runs is left for the next time.
        let is_open = |record: &Record| record.kind == RecordKind::Command && record.end.is_none();
        let records: Vec<&Record> = records.take_while(|record| is_last || !is_open(record)).collect();
        let (Some(first), Some(last)) = (records.first(), records.last()) else { return 0 };
        let missing = first.number - *written - 1;
        *written = last.number;
        to(&Line::Worker(Worker::new(worker, missing, None)));
        let mut call: Option<(Call, u64)> = None;
        for record in &records {
            match record.kind {
                RecordKind::Command => {
                    call.take().into_iter().for_each(|(call, _)| to(&Line::Call(call)));
                    let failed = record.state == OpState::Failed;
                    let (number, ns) = (record.command, record.end.map(|end| end - record.start));
                    call = is_call(record).then(|| (Call { number, ns, failed, ops: Vec::new() }, record.start));
                }
                RecordKind::Op(kind) => {
                    let open = call.as_mut().filter(|(call, _)| call.number == record.command);
                    if let (Some((call, last)), Some(op)) = (open, &record.op) {
                        let end = record.end.unwrap_or(record.start);
                        let after_ns = record.start.saturating_sub(*last);
                        call.ops.push(operation(kind.name(), op, record, after_ns, end - record.start));
                        *last = end;
                    }
                }
                _ => {}
            }
        }
        call.into_iter().for_each(|(call, _)| to(&Line::Call(call)));
        records.len() as u64
    }
}

/// Whether the record of a command is that of a call, which has the name of its function.
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
        failed: record.state != OpState::Done,
    }
}
