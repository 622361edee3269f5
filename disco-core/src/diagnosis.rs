//! The reason why a collective hangs or has failed, found by comparing the recordings of all workers.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fmt::{self, Write as _};
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use crate::activity::{CommKind, OpDetails, OpState, Record, RecordKind, Recording, UNNAMED, recoveries};
use crate::error::Result;
use crate::id::WorkerId;
use crate::worker_range::WorkerRange;

/// Largest number of rows in the table. Below them stands the number of further rows.
const MAX_ROWS: usize = 16;

/// A comparison of all workers' records of one operation: the one that most workers are inside, or that failed.
///
/// Its text is a table. A row shows one worker, or all workers in the same state: the operation that the worker is inside
/// and since when, or its last finished operation. Below the table stand the calls that differ and the missing workers.
#[non_exhaustive]
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Diagnosis {
    /// The communicator.
    pub comm: Arc<str>,
    /// The number of the operation on it.
    pub number: u64,
    /// The workers that have not called it, though they are ranks of the communicator.
    pub missing: Vec<WorkerId>,
    /// The calls of workers that differ, each with its workers.
    pub mismatch: Vec<(String, Vec<WorkerId>)>,
    /// The worker that called it last, if others had left it by then, and how long after the first call.
    pub late: Option<(WorkerId, Duration)>,
    /// For each worker its state in words.
    pub workers: Vec<(WorkerId, String)>,
}

impl Diagnosis {
    /// Compares recordings. `None` if no worker's last operation is unfinished or failed, or a cancellation has ended it.
    pub fn of(recordings: &[(WorkerId, Result<Recording>)]) -> Option<Self> {
        let recordings: Vec<_> = recordings
            .iter()
            .map(|(worker, recording)| (*worker, recording.as_ref().map_err(|error| error as &dyn fmt::Display)))
            .collect();
        Self::compare(&recordings)
    }

    /// The same for recordings that are kept elsewhere, each with the reason if there is none. Of a session that has
    /// recovered, operations since then.
    pub fn compare(recordings: &[(WorkerId, Result<&Recording, &dyn fmt::Display>)]) -> Option<Self> {
        Self::of_epochs(recordings).pop().flatten()
    }

    /// Compares the recordings of the time before each recovery of the session, oldest first, and of the time since the
    /// last one.
    pub fn of_epochs(recordings: &[(WorkerId, Result<&Recording, &dyn fmt::Display>)]) -> Vec<Option<Self>> {
        let ends = recoveries(recordings.iter().filter_map(|(_, it)| it.ok()));
        let Some(last) = ends.last().copied() else { return vec![Self::of_epoch(recordings)] };
        let part = |commands: Range<u64>| -> Vec<(WorkerId, Result<Recording, &dyn fmt::Display>)> {
            recordings.iter().map(|(worker, it)| (*worker, it.map(|it| it.of_commands(commands.clone())))).collect()
        };
        let compare = |parts: &[(WorkerId, Result<Recording, &dyn fmt::Display>)]| {
            Self::of_epoch(
                &parts.iter().map(|(worker, it)| (*worker, it.as_ref().map_err(|error| *error))).collect::<Vec<_>>(),
            )
        };
        let starts = [0].into_iter().chain(ends.iter().copied());
        let before = starts.zip(&ends).map(|(start, end)| compare(&part(start..*end)));
        let mut now = part(last..u64::MAX);
        for ((_, it), (_, whole)) in now.iter_mut().zip(recordings) {
            if let (Ok(it), Ok(whole)) = (it, whole) {
                (it.received, it.finished, it.inside) = (whole.received, whole.finished, whole.inside.clone());
            }
        }
        before.chain([compare(&now)]).collect()
    }

    /// Compares recordings without recoveries.
    fn of_epoch(recordings: &[(WorkerId, Result<&Recording, &dyn fmt::Display>)]) -> Option<Self> {
        let known = || recordings.iter().filter_map(|(worker, it)| Some((*worker, it.ok()?)));
        let Suspect { comm, is_transfer, number } = suspect(known().filter_map(|(_, recording)| stuck(recording)))?;
        // Collectives and transfers of a communicator are numbered apart.
        let is_of_comm =
            |(record, op): &(&Record, &OpDetails)| op.comm == comm && is_point_to_point(record) == is_transfer;
        let calls: Vec<(WorkerId, &Recording, &Record)> = known()
            .filter_map(|(worker, recording)| {
                let call = ops(recording).rfind(|it| is_of_comm(it) && it.1.number == number);
                call.map(|(record, _)| (worker, recording, record))
            })
            .collect();
        if calls.iter().any(|(.., record)| record.state == OpState::Cancelled) {
            // No worker is missing: the cancellation ends it on all.
            return None;
        }
        let callers: BTreeSet<WorkerId> = calls.iter().map(|(worker, ..)| *worker).collect();
        let is_of_all =
            calls.iter().any(|(_, _, record)| record.op.as_ref().is_some_and(|op| op.kind == CommKind::World));
        let is_rank = |recording: &Recording| is_of_all || ops(recording).any(|(_, op)| op.comm == comm);
        let missing: Vec<WorkerId> = known()
            // Only the two ranks of a transfer call it, and each has numbers of its own.
            .filter(|(worker, recording)| !is_transfer && is_rank(recording) && !callers.contains(worker))
            // Its call may be among the records that later ones have replaced.
            .filter(|(_, recording)| ops(recording).all(|it| !is_of_comm(&it) || it.1.number < number))
            .map(|(worker, _)| worker)
            .collect();
        let late = if is_transfer { None } else { late(&calls) };
        let mut signatures: BTreeMap<String, Vec<WorkerId>> = BTreeMap::new();
        for (worker, _, record) in calls.iter().filter(|_| !is_transfer) {
            signatures.entry(record.signature().unwrap_or_default()).or_default().push(*worker);
        }
        let mismatch = if signatures.len() > 1 { signatures.into_iter().collect() } else { Vec::new() };
        let state = |recording: &Result<&Recording, &dyn fmt::Display>| match recording {
            Ok(recording) => state(recording, &comm, number),
            Err(error) => error.to_string(),
        };
        let workers = recordings.iter().map(|(worker, recording)| (*worker, state(recording))).collect();
        Some(Self { comm, number, missing, mismatch, late, workers })
    }
}

/// The last call, if another worker had left the operation by then. Times are compared by their distance from the moment
/// at which they were copied, about the same on all machines, whose clocks may differ.
fn late(calls: &[(WorkerId, &Recording, &Record)]) -> Option<(WorkerId, Duration)> {
    let age = |recording: &Recording, time: u64| recording.time.saturating_sub(time);
    let starts = || calls.iter().map(|(worker, recording, record)| (age(recording, record.start), *worker));
    let ((first, _), (last, worker)) = starts().max().zip(starts().min())?;
    let is_left = calls.iter().any(|(_, recording, record)| {
        record.state == OpState::Failed && record.end.is_some_and(|end| age(recording, end) >= last)
    });
    is_left.then(|| (worker, rounded(first - last)))
}

/// The operations of a recording that have begun, oldest first, without their times on devices.
fn ops(recording: &Recording) -> impl DoubleEndedIterator<Item = (&Record, &OpDetails)> {
    recording
        .records
        .iter()
        .filter(|record| matches!(record.kind, RecordKind::Op(_)) && record.state != OpState::Refused)
        .filter_map(|record| Some((record, record.op.as_ref()?)))
}

/// The last operation, if it runs or has failed, and no cancellation was the cause. Of a group of operations, the first one.
fn stuck(recording: &Recording) -> Option<(&Record, &OpDetails)> {
    let (last, _) = ops(recording).next_back()?;
    let is_stuck = !matches!(last.state, OpState::Done | OpState::Cancelled);
    is_stuck.then(|| last_group(recording)).flatten().map(|(record, op, _)| (record, op))
}

/// The first operation of the last group of operations, and the number of the others. Its record may be replaced; then
/// the first one that is there.
fn last_group(recording: &Recording) -> Option<(&Record, &OpDetails, u8)> {
    let (last, op) = ops(recording).next_back()?;
    let first = last.number.saturating_sub(op.behind.into());
    let (record, op) = ops(recording).find(|(record, _)| record.number >= first)?;
    Some((record, op, last.number.saturating_sub(record.number) as u8))
}

/// An operation of a communicator. Collectives and transfers are numbered apart.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Suspect {
    comm: Arc<str>,
    is_transfer: bool,
    number: u64,
}

/// The operation that most workers are inside; of several the one with the lowest number, which the others wait behind.
/// Those of communicators without a name can't be compared.
fn suspect<'a>(stuck: impl Iterator<Item = (&'a Record, &'a OpDetails)>) -> Option<Suspect> {
    let mut counts: BTreeMap<Suspect, usize> = BTreeMap::new();
    for (record, op) in stuck.filter(|(_, op)| &*op.comm != UNNAMED) {
        let (comm, is_transfer, number) = (op.comm.clone(), is_point_to_point(record), op.number);
        *counts.entry(Suspect { comm, is_transfer, number }).or_default() += 1;
    }
    let most = counts.values().max().copied()?;
    counts.into_iter().find(|(_, count)| *count == most).map(|(op, _)| op)
}

fn is_point_to_point(record: &Record) -> bool {
    matches!(record.kind, RecordKind::Op(kind) if kind.is_point_to_point())
}

/// The activity of a worker: the operation that it is inside, and since when, or the operation that it finished last.
fn state(recording: &Recording, comm: &Arc<str>, number: u64) -> String {
    let mut text = match last_group(recording) {
        None => "has called no operation".to_owned(),
        Some((record, op, more)) => {
            let mut call = record.signature().unwrap_or_default();
            if more > 0 {
                _ = write!(call, " (with {more} more of its group)");
            }
            let other = if op.comm == *comm { String::new() } else { format!(" of {}", op.comm) };
            let place = format!("operation {}{other}", op.number);
            let since = |time: u64| rounded(recording.time.saturating_sub(time));
            match (record.state, record.end) {
                (OpState::Running, _) => format!("inside {place}, {call}, for {:?}", since(record.start)),
                (OpState::Started, _) => format!("has started {place}, {call}, {:?} ago", since(record.start)),
                (OpState::Failed, Some(end)) => {
                    format!("left {place}, {call}, with an error after {:?}", rounded(end.saturating_sub(record.start)))
                }
                (OpState::Cancelled, _) => format!("left {place}, {call}, when its call was cancelled"),
                (_, Some(end)) => format!("has finished {place}, {call}, {:?} ago", since(end)),
                (_, None) => format!("has finished {place}, {call}, which it called {:?} ago", since(record.start)),
            }
        }
    };
    let is_inside_op =
        ops(recording).any(|(record, op)| op.comm == *comm && op.number == number && record.state == OpState::Running);
    if let (Some(function), false) = (&recording.inside, is_inside_op) {
        _ = write!(text, "; is inside `{function}`");
    }
    if recording.received > recording.finished {
        _ = write!(text, " (command {})", recording.received);
    }
    text
}

fn rounded(nanoseconds: u64) -> Duration {
    let time = Duration::from_nanos(nanoseconds);
    match time.as_millis() {
        0 => time,
        1..1000 => Duration::from_millis(time.as_millis() as u64),
        _ => Duration::from_millis(time.as_millis() as u64 / 100 * 100),
    }
}

impl fmt::Display for Diagnosis {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Operation {} of {}, as each worker has recorded it:", self.number, self.comm)?;
        let mut rows: Vec<(&str, Vec<WorkerId>)> = Vec::new();
        let mut places: HashMap<&str, usize> = HashMap::new();
        for (worker, state) in &self.workers {
            let place = *places.entry(state).or_insert(rows.len());
            match rows.get_mut(place) {
                Some((_, workers)) => workers.push(*worker),
                None => rows.push((state, vec![*worker])),
            }
        }
        for (state, workers) in rows.iter().take(MAX_ROWS) {
            write!(f, "\n  {}: {state}", WorkerRange::list(workers))?;
        }
        if let Some(more @ 1..) = rows.len().checked_sub(MAX_ROWS) {
            write!(f, "\n  and {more} more rows")?;
        }
        if !self.mismatch.is_empty() {
            f.write_str("\nThe workers do not call the same:")?;
            for (call, workers) in self.mismatch.iter().take(MAX_ROWS) {
                write!(f, "\n  {}: {call}", WorkerRange::list(workers))?;
            }
        }
        if let Some((worker, time)) = self.late {
            write!(f, "\nLate: {worker} has called it {time:?} after the first.")?;
        }
        match self.missing.len() {
            0 => Ok(()),
            1 => write!(f, "\nMissing: {} has not called it.", WorkerRange::list(&self.missing)),
            _ => write!(f, "\nMissing: {} have not called it.", WorkerRange::list(&self.missing)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::activity::{Activity, OpPlace, TimeLimit};
    use crate::dtype::DType;
    use crate::id::Rank;
    use crate::op::{Op, Reduction};
    use crate::tensor::Tensor;

    fn all_reduce(count: usize) -> Op {
        Op::AllReduce { src: None, dst: Tensor::zeros(DType::F32, [count]).unwrap(), reduction: Reduction::Sum }
    }

    fn broadcast(count: usize) -> Op {
        Op::Broadcast { src: None, dst: Tensor::zeros(DType::F32, [count]).unwrap(), root: Rank::new(0) }
    }

    /// The diagnosis of workers that have finished operation 1 and are inside these, or inside a function.
    fn diagnose(inside: &[Option<Op>]) -> Option<Diagnosis> {
        let activities: Vec<Activity> = inside.iter().map(|_| Activity::default()).collect();
        let running: Vec<_> = activities
            .iter()
            .zip(inside)
            .map(|(activity, op)| {
                let comm = activity.intern("the world");
                activity.receive(3);
                activity.start_op(&Op::Barrier, inside.len(), OpPlace::new(comm, 1)).end(true);
                activity.enter(activity.intern("train.step"), TimeLimit::Call);
                op.as_ref().map(|op| activity.start_op(op, inside.len(), OpPlace::new(comm, 2)))
            })
            .collect();
        let recordings: Vec<_> = (0..)
            .map(WorkerId::new)
            .zip(activities.iter().map(|activity| Ok(Recording::decode(&activity.encode(usize::MAX)).unwrap())))
            .collect();
        drop(running);
        Diagnosis::of(&recordings)
    }

    /// The text without times.
    fn text(diagnosis: &Diagnosis) -> String {
        let mut text = String::new();
        for word in diagnosis.to_string().split_inclusive([' ', '\n']) {
            let is_time = word.starts_with(|first: char| first.is_ascii_digit())
                && word.trim_end().trim_end_matches(',').ends_with('s');
            text.push_str(if is_time { word.trim_start_matches(|c: char| !c.is_whitespace()) } else { word });
        }
        text
    }

    #[test]
    fn the_worker_that_has_not_called_the_collective_is_missing() {
        let diagnosis = diagnose(&[Some(all_reduce(4)), Some(all_reduce(4)), None, Some(all_reduce(4))]).unwrap();
        assert_eq!((diagnosis.number, &diagnosis.missing[..]), (2, &[WorkerId::new(2)][..]));
        let text = text(&diagnosis);
        assert!(text.starts_with("Operation 2 of the world, as each worker has recorded it:\n"), "{text}");
        assert!(text.contains("inside operation 2, all_reduce sum f32 x 4, for "), "{text}");
        assert!(text.contains("worker 2: has finished operation 1, barrier, which it called "), "{text}");
        assert!(text.contains("; is inside `train.step` (command 3)"), "{text}");
        assert!(text.ends_with("Missing: worker 2 has not called it."), "{text}");
    }

    #[test]
    fn different_calls_of_one_collective_are_a_mismatch() {
        let diagnosis = diagnose(&[Some(all_reduce(4)), Some(broadcast(4)), Some(all_reduce(4))]).unwrap();
        assert!(diagnosis.missing.is_empty());
        let [first, second] = [("all_reduce sum f32 x 4", &[0, 2][..]), ("broadcast f32 x 4, root rank 0", &[1][..])]
            .map(|(call, workers)| (call.to_owned(), workers.iter().copied().map(WorkerId::new).collect::<Vec<_>>()));
        assert_eq!(diagnosis.mismatch, [first, second]);
        let text = diagnosis.to_string();
        assert!(text.ends_with("do not call the same:\n  workers 0, 2: all_reduce sum f32 x 4\n  worker 1: broadcast f32 x 4, root rank 0"), "{text}");
    }

    /// A recording of a worker that has done `before` and is inside `now`, both with these numbers.
    fn recording(before: &[(Op, u64)], now: Option<(Op, u64)>) -> Recording {
        let activity = Activity::default();
        let comm = activity.intern("the world");
        for (op, number) in before {
            activity.start_op(op, 3, OpPlace::new(comm, *number)).end(true);
        }
        let running = now.as_ref().map(|(op, number)| activity.start_op(op, 3, OpPlace::new(comm, *number)));
        let recording = Recording::decode(&activity.encode(usize::MAX)).unwrap();
        drop(running);
        recording
    }

    fn send() -> Op {
        Op::Send { src: Tensor::zeros(DType::F32, [4]).unwrap(), to: Rank::new(0) }
    }

    fn compare(recordings: &[Recording]) -> Diagnosis {
        let workers = (0..).map(WorkerId::new);
        Diagnosis::of(&workers.zip(recordings.iter().cloned().map(Ok)).collect::<Vec<_>>()).unwrap()
    }

    #[test]
    fn a_send_with_the_number_of_a_collective_is_no_call_of_it() {
        let (inside, sender) = (|| recording(&[], Some((all_reduce(4), 2))), recording(&[(send(), 2)], None));
        let diagnosis = compare(&[inside(), sender, inside()]);
        assert_eq!((diagnosis.missing, diagnosis.mismatch), (vec![WorkerId::new(1)], Vec::new()));
    }

    #[test]
    fn a_worker_inside_a_group_is_shown_in_its_first_operation() {
        let inside = |op: &Op, more: &[Op]| {
            let activity = Activity::default();
            let running = activity.start_ops(op, more, 3, OpPlace::new(activity.intern("the world"), 1));
            let recording = Recording::decode(&activity.encode(usize::MAX)).unwrap();
            drop(running);
            recording
        };
        let group = inside(&all_reduce(4), &[broadcast(2), Op::Barrier]);
        let diagnosis = compare(&[group, inside(&all_reduce(4), &[]), recording(&[], None)]);
        assert_eq!((diagnosis.number, diagnosis.mismatch.len()), (1, 0));
        let text = text(&diagnosis);
        assert!(
            text.contains("worker 0: inside operation 1, all_reduce sum f32 x 4 (with 2 more of its group), for"),
            "{text}"
        );
    }

    #[test]
    fn a_send_that_waits_misses_no_workers() {
        let diagnosis = compare(&[recording(&[(Op::Barrier, 1)], None), recording(&[], Some((send(), 1)))]);
        assert_eq!((diagnosis.number, diagnosis.missing), (1, Vec::new()));
    }

    #[test]
    fn clocks_of_different_machines_make_no_worker_late() {
        let mut there = recording(&[], Some((all_reduce(4), 1)));
        let day = 86_400_000_000_000;
        there.time += day;
        there.records.iter_mut().for_each(|record| record.start += day);
        let mut here = recording(&[], Some((all_reduce(4), 1)));
        for record in &mut here.records {
            (record.state, record.end) = (OpState::Failed, Some(here.time));
        }
        assert_eq!(compare(&[here, there]).late, None);
    }

    #[test]
    fn workers_that_are_not_in_a_collective_have_no_diagnosis() {
        assert_eq!(diagnose(&[None, None]), None);
    }
}
