//! The recordings of the workers of a random session.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use disco::activity::{Record, RecordKind, Recording};
use disco::{Builder, LaneSession, OpKind, Timeline};
use disco_core::sync;

use super::user::Wrong;

/// The timelines that a session has passed on.
#[derive(Default)]
pub(crate) struct Timelines(Arc<Mutex<Vec<Timeline>>>);

impl Timelines {
    /// Records `records` records of each worker.
    pub(crate) fn keep(&self, builder: Builder, records: usize) -> Builder {
        let kept = self.0.clone();
        builder.timeline(records, move |timeline| {
            sync::lock(&kept).push(timeline);
        })
    }

    /// Checks that the session has passed on its timeline once, if it has one. If all workers have left in order, the
    /// last command of each is that of the controller.
    pub(crate) fn check(&self, is_kept: bool, in_order: bool) -> Wrong<()> {
        let kept = sync::lock(&self.0);
        match (&kept[..], is_kept) {
            ([], false) => Ok(()),
            ([timeline], true) => check_timeline(timeline, in_order),
            (other, _) => Err(format!("{} timelines of a session", other.len())),
        }
    }
}

/// Checks the recordings of the workers of a session that has not ended.
pub(crate) fn check_recordings(session: &LaneSession) -> Wrong<()> {
    for (worker, recording) in session.observer().recordings(usize::MAX, Duration::from_secs(30)).unwrap() {
        let recording = recording.map_err(|error| format!("records of {worker}: {error}"))?;
        check(&recording).map_err(|why| format!("records of {worker}: {why}"))?;
    }
    Ok(())
}

fn check_timeline(timeline: &Timeline, in_order: bool) -> Wrong<()> {
    let last = |recording: &Recording| commands(recording).last().map(|record| record.command);
    check(&timeline.controller).map_err(|why| format!("records of the controller: {why}"))?;
    for (worker, recording) in &timeline.workers {
        match recording {
            Ok(recording) => {
                check(recording).map_err(|why| format!("records of {worker}: {why}"))?;
                let (theirs, ours) = (last(recording), last(&timeline.controller));
                if theirs > ours || (in_order && theirs != ours) {
                    return Err(format!("{worker} has recorded command {theirs:?}, the controller {ours:?}"));
                }
            }
            Err(error) if in_order => return Err(format!("no records of {worker}: {error}")),
            Err(_) => {}
        }
    }
    Ok(())
}

fn commands(recording: &Recording) -> impl Iterator<Item = &Record> {
    recording.records.iter().filter(|record| record.kind == RecordKind::Command)
}

/// Commands have consecutive numbers; collectives of a communicator have rising ones. No record ends before it starts.
fn check(recording: &Recording) -> Wrong<()> {
    let numbers: Vec<u64> = commands(recording).map(|record| record.command).collect();
    if !numbers.windows(2).all(|pair| pair[0] + 1 == pair[1]) {
        return Err(format!("commands {numbers:?}"));
    }
    let is_collective = |kind: OpKind| !kind.is_point_to_point();
    let mut collectives: Vec<(&str, u64)> = Vec::new();
    for record in &recording.records {
        if record.end.is_some_and(|end| end < record.start) {
            return Err(format!("{record:?} ends before its start"));
        }
        let RecordKind::Op(kind) = record.kind else { continue };
        let Some(op) = record.op.as_ref().filter(|_| is_collective(kind)) else { continue };
        match collectives.iter_mut().find(|(comm, _)| *comm == &*op.comm) {
            Some((_, last)) if *last >= op.number => return Err(format!("{record:?} after operation {last}")),
            Some((_, last)) => *last = op.number,
            None => collectives.push((&op.comm, op.number)),
        }
    }
    Ok(())
}
