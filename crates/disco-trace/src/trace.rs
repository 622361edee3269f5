//! The recordings of a session.

use std::fmt;

use disco_core::activity::{OpState, Record, RecordKind, Recording};
use disco_core::{OpKind, WorkerId};

/// The recordings of the controller and of the workers of a session.
#[non_exhaustive]
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Trace {
    /// Name of the program.
    pub program: String,
    /// The recording of the controller: its commands are submissions.
    pub controller: Option<Recording>,
    /// The workers, in the order of their numbers.
    pub workers: Vec<WorkerTrace>,
    /// The parts that are missing in the file from which the trace was read.
    pub missing: Missing,
}

/// The recording of one worker.
#[non_exhaustive]
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WorkerTrace {
    /// The worker.
    pub worker: WorkerId,
    /// Where it ran, for people: `this machine`, `node 1 (host)`. Workers with the same text are shown together.
    pub place: String,
    /// The kind of the worker, for people: `thread`, `process`.
    pub kind: String,
    /// Its recording, or the reason why there is none.
    pub recording: Result<Recording, String>,
}

/// The part of a trace that its file lacks, because the file ends early.
#[non_exhaustive]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Missing {
    /// Workers of which the file has nothing.
    pub workers: u64,
    /// Records, including records of the missing workers.
    pub records: u64,
}

impl Trace {
    /// The trace of a session of `program`. Workers are sorted by their numbers.
    pub fn new(program: impl Into<String>, controller: Option<Recording>, mut workers: Vec<WorkerTrace>) -> Self {
        workers.sort_by_key(|worker| worker.worker);
        Self { program: program.into(), controller, workers, missing: Missing::default() }
    }

    /// The recordings that exist: the controller's, then those of workers.
    pub(crate) fn recordings(&self) -> impl Iterator<Item = &Recording> {
        self.controller.iter().chain(self.workers.iter().filter_map(WorkerTrace::known))
    }

    /// First and last time of all recordings, in nanoseconds on the controller's clock.
    pub(crate) fn range(&self) -> (i128, i128) {
        // Later times of a clock that jumps may be aligned with earlier ones.
        let times = |recording: &Recording| {
            let now = aligned(recording, recording.time);
            let records = recording.records.iter();
            let records = records.map(|it| (aligned(recording, it.start), aligned(recording, end(recording, it))));
            records.fold((now, now), |all, (start, end)| (all.0.min(start), all.1.max(start).max(end)))
        };
        let all = self.recordings().map(times);
        all.reduce(|all, one| (all.0.min(one.0), all.1.max(one.1))).unwrap_or_default()
    }
}

/// A time of a recording on the controller's clock.
pub(crate) fn aligned(recording: &Recording, time: u64) -> i128 {
    i128::from(time) + i128::from(recording.alignment.at(time).0)
}

/// The end of a record; of one that runs, the time of the recording; of an operation whose end is not recorded, its
/// start. Never before its start.
pub(crate) fn end(recording: &Recording, record: &Record) -> u64 {
    let unknown = if is_running(record) { recording.time } else { record.start };
    record.end.unwrap_or(unknown).max(record.start)
}

/// The key of an operation and of its time on a device, which no other operation of the worker has: transfers and
/// collectives are numbered apart, and the command of another epoch differs. `None` for other records.
pub(crate) fn launch_key(record: &Record) -> Option<(OpKind, &str, u64, u64)> {
    let (RecordKind::Op(kind) | RecordKind::Device(kind), Some(op)) = (record.kind, &record.op) else { return None };
    Some((kind, &op.comm, op.number, record.command))
}

/// Whether the record has not ended. Without a timeline, operations have ended though their ends are not recorded.
pub(crate) fn is_running(record: &Record) -> bool {
    record.end.is_none() && record.state == OpState::Running
}

impl WorkerTrace {
    /// The trace of a worker at a place.
    pub fn new(
        worker: WorkerId,
        place: impl Into<String>,
        kind: impl Into<String>,
        recording: Result<Recording, String>,
    ) -> Self {
        Self { worker, place: place.into(), kind: kind.into(), recording }
    }

    /// The recording, if there is one.
    pub(crate) fn known(&self) -> Option<&Recording> {
        self.recording.as_ref().ok()
    }
}

impl Missing {
    /// Whether nothing is missing.
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}

impl fmt::Display for Missing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let records = if self.records == 1 { "record" } else { "records" };
        write!(f, "The file ends early: {} {records} are missing", self.records)?;
        match self.workers {
            0 => f.write_str("."),
            1 => f.write_str(", and 1 worker."),
            more => write!(f, ", and {more} workers."),
        }
    }
}
