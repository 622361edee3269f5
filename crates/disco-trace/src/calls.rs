//! The calls of one collective by several workers, matched by communicator and number.

use std::collections::{BTreeMap, BTreeSet};

use disco_core::activity::{CommKind, OpDetails, Record, RecordKind, recoveries};
use disco_core::{OpKind, Rank, WorkerId};

use crate::trace::{Trace, WorkerTrace, aligned, end};

/// The collectives of a trace, by recoveries before them, communicator and number; sends and receives are not among them.
pub(crate) struct Calls<'a> {
    pub(crate) all: Vec<Call<'a>>,
    members: BTreeMap<&'a str, Vec<WorkerId>>,
    /// The ranks of communicators that worker functions have split off.
    split: BTreeMap<(&'a str, Rank), WorkerId>,
}

/// One collective.
pub(crate) struct Call<'a> {
    /// Number of recoveries of the session before it.
    pub(crate) epoch: usize,
    pub(crate) comm: &'a str,
    pub(crate) number: u64,
    /// A call for each worker that has recorded one, in the order of workers.
    pub(crate) entries: Vec<Entry<'a>>,
}

/// The call of one worker.
#[derive(Clone, Copy)]
pub(crate) struct Entry<'a> {
    /// Position in [`Trace::workers`].
    pub(crate) index: usize,
    pub(crate) worker: WorkerId,
    /// Position in the recording.
    pub(crate) position: usize,
    /// On the controller's clock.
    pub(crate) start: i128,
    pub(crate) end: i128,
    /// Largest error of these times against the times of other places.
    error: u64,
    place: &'a str,
    pub(crate) record: &'a Record,
    pub(crate) op: &'a OpDetails,
}

impl<'a> Calls<'a> {
    pub(crate) fn of(trace: &'a Trace) -> Self {
        let recoveries = recoveries(trace.workers.iter().filter_map(WorkerTrace::known));
        let mut calls: BTreeMap<(usize, &str, u64), Vec<Entry<'_>>> = BTreeMap::new();
        let mut members: BTreeMap<&str, (&OpDetails, BTreeSet<WorkerId>)> = BTreeMap::new();
        let mut split = BTreeMap::new();
        for (index, it) in trace.workers.iter().enumerate() {
            let Some(recording) = it.known() else { continue };
            for (position, record) in recording.records.iter().enumerate() {
                let (RecordKind::Op(kind), Some(op)) = (record.kind, &record.op) else { continue };
                members.entry(&op.comm).or_insert((op, BTreeSet::new())).1.insert(it.worker);
                if let CommKind::Split(rank) = op.kind {
                    split.insert((&*op.comm, rank), it.worker);
                }
                if kind.is_point_to_point() {
                    continue;
                }
                let (start, end) = (aligned(recording, record.start), aligned(recording, end(recording, record)));
                let (error, place) = (recording.alignment.at(record.start).1, &*it.place);
                let worker = it.worker;
                let entry = Entry { index, worker, position, start, end, error, place, record, op };
                let epoch = recoveries.partition_point(|recovery| *recovery <= record.command);
                let entries = calls.entry((epoch, &op.comm, op.number)).or_default();
                match entries.last_mut().filter(|last| last.index == index) {
                    // An earlier communicator with the same name.
                    Some(earlier) => *earlier = entry,
                    None => entries.push(entry),
                }
            }
        }
        let everyone = || trace.workers.iter().map(|it| it.worker).collect();
        let members = members.into_iter().map(|(comm, (op, members))| {
            (comm, if op.kind == CommKind::World { everyone() } else { members.into_iter().collect() })
        });
        let members = members.collect();
        let all = calls.into_iter().map(|((epoch, comm, number), entries)| Call { epoch, comm, number, entries });
        Self { all: all.collect(), members, split }
    }

    /// The workers of a communicator, in the order of their numbers: all workers, or the workers that have called
    /// one of its operations.
    pub(crate) fn members(&self, comm: &str) -> &[WorkerId] {
        self.members.get(comm).map_or(&[], Vec::as_slice)
    }

    /// The worker that is `rank` of the communicator of `op`. `None` for a rank of a split that has recorded no operation
    /// of it: its ranks may have any order.
    pub(crate) fn worker(&self, op: &OpDetails, rank: Rank) -> Option<WorkerId> {
        if matches!(op.kind, CommKind::Split(_)) {
            self.split.get(&(&*op.comm, rank)).copied()
        } else {
            self.members(&op.comm).get(rank.index()).copied()
        }
    }

    /// Bytes of an operation as `disco bench` counts them: of the larger of one rank's source and destination.
    pub(crate) fn size(&self, kind: OpKind, op: &OpDetails) -> u64 {
        let blocks = if kind.has_blocks() { self.members(&op.comm).len().max(1) as u64 } else { 1 };
        op.bytes().saturating_mul(blocks)
    }
}

impl<'a> Call<'a> {
    /// The call that arrived last.
    pub(crate) fn last(&self) -> Option<&Entry<'a>> {
        self.entries.iter().max_by_key(|entry| entry.start)
    }

    /// Time between the first and the last arrival, in nanoseconds.
    pub(crate) fn spread(&self) -> u64 {
        self.first().zip(self.last()).map_or(0, |(first, last)| nanoseconds(last.start - first.start))
    }

    /// The call that certainly arrived last: after each other call, and on another machine by more than the error of the two
    /// clocks. `None` for a single call.
    pub(crate) fn latecomer(&self) -> Option<&Entry<'a>> {
        let last = self.last()?;
        let is_before = |entry: &Entry<'_>| {
            let error = if entry.place == last.place { 0 } else { i128::from(entry.error) + i128::from(last.error) };
            last.start - entry.start > error
        };
        let others = || self.entries.iter().filter(|entry| entry.index != last.index);
        (others().count() > 0 && others().all(is_before)).then_some(last)
    }

    fn first(&self) -> Option<&Entry<'a>> {
        self.entries.iter().min_by_key(|entry| entry.start)
    }

    /// Time from the last arrival to the last end, in nanoseconds; `None` while a call is unfinished, and if an end is
    /// not recorded. The first operation of a group has the group's, and the others have none.
    pub(crate) fn duration(&self) -> Option<u64> {
        let last = self.last().filter(|_| self.entries.iter().all(|entry| entry.op.behind == 0))?;
        let end = self.entries.iter().map(|entry| entry.record.end.map(|_| entry.end)).max_by_key(|end| {
            // An unfinished call is the largest.
            end.unwrap_or(i128::MAX)
        })??;
        Some(nanoseconds(end - last.start))
    }

    /// The kind that the first worker calls.
    pub(crate) fn kind(&self) -> Option<OpKind> {
        match self.entries.first()?.record.kind {
            RecordKind::Op(kind) => Some(kind),
            _ => None,
        }
    }

    /// The different calls, with their workers, if not all are the same.
    pub(crate) fn mismatch(&self) -> Vec<(String, Vec<WorkerId>)> {
        let mut calls: BTreeMap<String, Vec<WorkerId>> = BTreeMap::new();
        for entry in &self.entries {
            calls.entry(entry.record.signature().unwrap_or_default()).or_default().push(entry.worker);
        }
        // The counts of V-forms differ, which their signatures leave out.
        if calls.len() < 2 { Vec::new() } else { calls.into_iter().collect() }
    }
}

fn nanoseconds(time: i128) -> u64 {
    u64::try_from(time.max(0)).unwrap_or(u64::MAX)
}
