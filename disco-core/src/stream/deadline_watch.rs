//! Deadlines of waits for workers that make no progress.
//!
//! # Invariants
//! - Deadlines on the controller: workers do not record times. The session has one ticker thread; at each tick, a
//!   waiting caller checks whether the workers have made progress since its last check.
//!   A worker inside a worker function has no deadline unless `Deadlines::call` is set: the wait warns every 30 s
//!   (`Deadlines::warn`). Inside a collective or `disco.init_ccl` their own deadlines apply; a wait for such a worker
//!   also checks the workers that are inside a function of the program. After a deadline has passed, the next
//!   shutdown waits for 3 s at most.

use std::collections::{BTreeSet, HashMap};
use std::time::{Duration, Instant};

use super::Deadlines;
use crate::activity::{Progress, TimeLimit};
use crate::error::Error;
use crate::id::WorkerId;

/// Watches the progress of workers during one wait. Workers report no times: a worker's idle time starts when the
/// controller last saw its progress change.
#[derive(Debug)]
pub(super) struct DeadlineWatch {
    since: Instant,
    /// The last check, or the start of the wait. A worker that the wait has not watched before may have made progress until
    /// then.
    checked: Instant,
    warned: Instant,
    seen: HashMap<WorkerId, (ProgressMark, Instant)>,
}

/// Counters of a worker, at least one of which changes when the worker makes progress.
type ProgressMark = (u64, u64, u64, Option<u32>);

impl DeadlineWatch {
    pub(super) fn new() -> Self {
        let now = Instant::now();
        Self { since: now, checked: now, warned: now, seen: HashMap::new() }
    }

    /// Time since `worker` last made progress, or since the wait began to watch it.
    pub(super) fn idle(&mut self, worker: WorkerId, progress: &Progress) -> Duration {
        let op = progress.ops.last().map(|op| op.number);
        // Workers of a node share a connection, so its bytes are no progress of a worker that is inside a function.
        let moved = if progress.inside.is_none() { progress.moved } else { 0 };
        let mark = (progress.received, progress.finished, moved, op);
        let now = Instant::now();
        let seen = self.seen.entry(worker).or_insert((mark, self.checked));
        if seen.0 != mark {
            *seen = (mark, now);
        }
        now.saturating_duration_since(seen.1)
    }

    /// The error that ends a wait for `missing`, if one of these workers has made no progress for too long. User code
    /// is unlimited unless there is a deadline for calls. Collectives and `disco.init_ccl` have deadlines of their own;
    /// [`Deadlines::collective`] is for a backend that does not keep them. The error lists all workers of `missing`,
    /// the ones that wait for other workers last. With it come the commands of the functions of the program that are
    /// late.
    pub(super) fn reply(
        &mut self,
        limits: &Deadlines,
        operation: &str,
        mut missing: Vec<(WorkerId, Progress)>,
    ) -> Option<(Error, BTreeSet<u64>)> {
        let limit = |progress: &Progress| match &progress.inside {
            _ if waits_for_others(progress) => Some(limits.collective.unwrap_or(Deadlines::COLLECTIVE)),
            Some(_) => limits.call,
            None => Some(limits.reply),
        };
        let idle: Vec<Duration> = missing.iter().map(|(worker, progress)| self.idle(*worker, progress)).collect();
        self.checked = Instant::now();
        let late = missing.iter().zip(idle).filter_map(|((_, progress), idle)| {
            limit(progress).filter(|limit| idle >= *limit).map(|limit| (limit, progress))
        });
        let late: Vec<_> = late.collect();
        let after = late.iter().map(|(limit, _)| *limit).min()?;
        let calls = late.iter().filter(|(_, progress)| progress.inside.is_some() && !waits_for_others(progress));
        let calls = calls.map(|(_, progress)| progress.received).collect();
        missing.sort_by_key(|(_, progress)| waits_for_others(progress));
        let state: Vec<String> =
            missing.iter().map(|(worker, progress)| format!("{worker} does not answer: {progress}")).collect();
        Some((Error::Deadline { operation: operation.into(), after, state: state.join("; ") }, calls))
    }

    /// The text of a warning that is due: `operation` still waits for workers inside a worker function that has no
    /// deadline.
    pub(super) fn warning(
        &mut self,
        limits: &Deadlines,
        operation: &str,
        missing: &[(WorkerId, Progress)],
    ) -> Option<String> {
        if self.warned.elapsed() < limits.warn {
            return None;
        }
        self.warned = Instant::now();
        let inside = missing.iter().filter(|(_, progress)| !waits_for_others(progress));
        let inside: Vec<String> = inside
            .filter_map(|(worker, progress)| {
                let function = progress.inside.as_ref()?;
                Some(format!("{worker} inside `{function}` for {:?}", rounded(self.idle(*worker, progress))))
            })
            .collect();
        let since = rounded(self.since.elapsed());
        let end = match limits.call {
            Some(limit) => format!("the limit for one call is {limit:?}"),
            None => "no limit for calls (`Deadlines::call`) is set, so that the wait has no limit".into(),
        };
        (!inside.is_empty()).then(|| format!("{operation} has waited {since:?} for {}; {end}", inside.join(", ")))
    }

    /// The error that ends a wait for capacity, if the slowest worker has finished no command for too long.
    pub(super) fn stall(&mut self, limits: &Deadlines, worker: WorkerId, progress: &Progress) -> Option<Error> {
        let after = self.idle(worker, progress);
        self.checked = Instant::now();
        let state = progress.to_string();
        (after >= limits.stall).then_some(Error::Stalled { worker, after: limits.stall, state })
    }
}

/// Whether a worker is inside an operation that waits for other workers.
pub(super) fn waits_for_others(progress: &Progress) -> bool {
    progress.collective().is_some() || progress.inside.is_some() && progress.limit == TimeLimit::Own
}

/// A time rounded to tenths of a second, for texts.
pub(super) fn rounded(time: Duration) -> Duration {
    Duration::from_millis(time.as_millis() as u64 / 100 * 100)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::activity::{Activity, OpPlace};
    use crate::op::Op;

    /// A limit that real time does not reach.
    const LIMIT: Duration = Duration::from_secs(60);

    /// Moves the times that a wait remembers into the past, as if this time had passed.
    fn pass(watch: &mut DeadlineWatch, time: Duration) {
        [&mut watch.since, &mut watch.checked, &mut watch.warned].into_iter().for_each(|at| *at -= time);
        watch.seen.values_mut().for_each(|(_, at)| *at -= time);
    }

    #[test]
    fn the_error_of_a_collective_that_never_ends_names_it() {
        let limits = Deadlines::default().with_collective(Duration::ZERO);
        let activity = Activity::default();
        activity.receive(3);
        activity.enter(activity.intern("train.step"), TimeLimit::Call);
        let op = activity.start_op(&Op::Barrier, 2, OpPlace::default());
        let missing = || vec![(WorkerId::new(1), activity.progress())];
        assert!(DeadlineWatch::new().reply(&Deadlines::default(), "sync_all", missing()).is_none());
        let late = DeadlineWatch::new().reply(&limits, "sync_all", missing()).unwrap().0.to_string();
        assert!(late.contains("worker 1 does not answer: "), "{late}");
        assert!(late.ends_with("inside `train.step`, in barrier (operation 1)"), "{late}");
        op.end(true);
    }

    #[test]
    fn bytes_in_flight_count_as_progress() {
        let limits = Deadlines::default().with_reply(LIMIT).with_stall(LIMIT);
        let (worker, mut watch) = (WorkerId::new(1), DeadlineWatch::new());
        let moved = |moved| Progress { moved, ..Progress::new(3, 2) };
        assert!(watch.reply(&limits, "get", vec![(worker, moved(0))]).is_none());
        for bytes in 1..5 {
            pass(&mut watch, LIMIT);
            assert!(watch.reply(&limits, "get", vec![(worker, moved(bytes))]).is_none());
            assert!(watch.stall(&limits, worker, &moved(bytes)).is_none());
        }
        pass(&mut watch, LIMIT);
        let late = watch.reply(&limits, "get", vec![(worker, moved(4))]).unwrap().0.to_string();
        assert_eq!(late, "get: no end after 60s: worker 1 does not answer: finished command 2, in command 3");
        assert!(matches!(watch.stall(&limits, worker, &moved(4)), Some(Error::Stalled { .. })));
    }

    #[test]
    fn bytes_in_flight_are_no_progress_of_a_worker_function() {
        let limits = Deadlines::default().with_call(LIMIT);
        let activity = Activity::default();
        activity.receive(3);
        activity.enter(activity.intern("train.step"), TimeLimit::Call);
        let (worker, mut watch) = (WorkerId::new(1), DeadlineWatch::new());
        let missing = |moved| vec![(worker, Progress { moved, ..activity.progress() })];
        assert!(watch.reply(&limits, "get", missing(0)).is_none());
        pass(&mut watch, LIMIT);
        assert!(watch.reply(&limits, "get", missing(1 << 20)).is_some());
    }

    #[test]
    fn the_idle_time_of_a_worker_starts_when_the_wait_begins_to_watch_it() {
        let limit = Duration::from_secs(60);
        let limits = Deadlines::default().with_call(limit).with_stall(limit);
        let inside = |name, limit, seq| {
            let activity = Activity::default();
            activity.receive(seq);
            activity.enter(activity.intern(name), limit);
            activity.progress()
        };
        let begun_before = |ago| {
            let mut watch = DeadlineWatch::new();
            (watch.since, watch.checked) = (watch.since - ago, watch.checked - ago);
            watch
        };
        let [first, second] = [0, 1].map(WorkerId::new);
        let mut watch = begun_before(limit);
        assert!(
            watch.reply(&limits, "get", vec![(first, inside("train.step", TimeLimit::Call, 3))]).is_some(),
            "since the wait began"
        );
        // The first worker has made progress, and waits for the second one now.
        let both = vec![
            (first, inside("disco.init_ccl", TimeLimit::Own, 4)),
            (second, inside("train.step", TimeLimit::Call, 4)),
        ];
        assert!(watch.reply(&limits, "get", both).is_none());
        let mut watch = begun_before(limit);
        assert!(watch.stall(&limits, first, &inside("train.step", TimeLimit::Call, 3)).is_some());
        assert!(
            watch.stall(&limits, second, &inside("train.step", TimeLimit::Call, 3)).is_none(),
            "now it is the slowest one"
        );
    }

    #[test]
    fn the_deadline_for_calls_does_not_apply_to_the_data_plane() {
        let limits = Deadlines::default().with_call(Duration::ZERO);
        let inside = |name, limit| {
            let activity = Activity::default();
            activity.receive(3);
            activity.enter(activity.intern(name), limit);
            vec![(WorkerId::new(1), activity.progress())]
        };
        assert!(DeadlineWatch::new().reply(&limits, "sync_all", inside("train.step", TimeLimit::Call)).is_some());
        assert!(DeadlineWatch::new().reply(&limits, "sync_all", inside("disco.init_ccl", TimeLimit::Own)).is_none());
        let limits = limits.with_collective(Duration::ZERO);
        assert!(DeadlineWatch::new().reply(&limits, "sync_all", inside("disco.init_ccl", TimeLimit::Own)).is_some());
    }

    #[test]
    fn the_error_names_a_worker_inside_a_function_before_the_workers_that_wait_for_it() {
        let limits = Deadlines::default().with_call(Duration::ZERO).with_warn(Duration::ZERO);
        let (waits, hangs, connects) = (Activity::default(), Activity::default(), Activity::default());
        [&waits, &hangs].iter().for_each(|activity| activity.enter(activity.intern("train.step"), TimeLimit::Call));
        connects.enter(connects.intern("disco.init_ccl"), TimeLimit::Own);
        let op = waits.start_op(&Op::Barrier, 3, OpPlace::default());
        let missing = [&waits, &connects, &hangs].into_iter().enumerate();
        let missing: Vec<_> = missing.map(|(index, it)| (WorkerId::new(index as u32), it.progress())).collect();
        let warning = DeadlineWatch::new().warning(&limits, "sync_all", &missing).unwrap();
        assert_eq!(
            warning,
            "sync_all has waited 0ns for worker 2 inside `train.step` for 0ns; the limit for one call is 0ns"
        );
        let late = DeadlineWatch::new().reply(&limits, "sync_all", missing).unwrap().0.to_string();
        assert!(late.starts_with("sync_all: no end after 0ns: worker 2 does not answer: "), "{late}");
        op.end(true);
    }
}
