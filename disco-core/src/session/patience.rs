//! Who has made no progress, and since when.

use std::time::{Duration, Instant};

use super::Deadlines;
use crate::activity::Progress;
use crate::error::Error;
use crate::id::WorkerId;

/// Watches workers during one wait. Workers write no times: what counts is when this saw them move last.
#[derive(Debug)]
pub(super) struct Patience {
    since: Instant,
    seen: Vec<(WorkerId, Mark, Instant)>,
}

/// What changes when a worker makes progress.
type Mark = (u64, u64, Option<u32>);

impl Patience {
    pub(super) fn new() -> Self {
        Self { since: Instant::now(), seen: Vec::new() }
    }

    /// Time since `worker` moved, or since the wait began.
    pub(super) fn idle(&mut self, worker: WorkerId, progress: &Progress) -> Duration {
        let mark = (progress.received, progress.finished, progress.ops.last().map(|op| op.number));
        let now = Instant::now();
        match self.seen.iter_mut().find(|seen| seen.0 == worker) {
            Some(seen) if seen.1 == mark => {}
            Some(seen) => *seen = (worker, mark, now),
            None => self.seen.push((worker, mark, self.since)),
        }
        let seen = self.seen.iter().find(|seen| seen.0 == worker);
        seen.map_or(Duration::ZERO, |seen| now.saturating_duration_since(seen.2))
    }

    /// The end of a wait for replies of `missing`, if one of them has kept it waiting too long. User code may take its time,
    /// unless there is a deadline for calls; a collective has its own, and one for the backend that forgets it. The error lists all who are missing.
    pub(super) fn reply(
        &mut self,
        limits: &Deadlines,
        operation: &str,
        mut missing: Vec<(WorkerId, Progress)>,
    ) -> Option<Error> {
        let limit = |progress: &Progress| match &progress.inside {
            _ if progress.collective().is_some() => Some(limits.collective),
            Some(_) => limits.call,
            None => Some(limits.reply),
        };
        let idle: Vec<Duration> = missing.iter().map(|(worker, progress)| self.idle(*worker, progress)).collect();
        let late = missing.iter().zip(idle).filter_map(|((_, progress), idle)| limit(progress).filter(|l| idle >= *l));
        let after = late.min()?;
        // Those inside a collective wait for the others.
        missing.sort_by_key(|(_, progress)| progress.collective().is_some());
        let state: Vec<String> =
            missing.iter().map(|(worker, progress)| format!("{worker} does not answer: {progress}")).collect();
        Some(Error::Deadline { operation: operation.into(), after, state: state.join("; ") })
    }

    /// The end of a wait for room, if the worker that is furthest behind has finished nothing for too long.
    pub(super) fn room(&mut self, limits: &Deadlines, worker: WorkerId, progress: &Progress) -> Option<Error> {
        let after = self.idle(worker, progress);
        let state = progress.to_string();
        (after >= limits.stall).then_some(Error::Stalled { worker, after: limits.stall, state })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::activity::Activity;
    use crate::op::Op;

    #[test]
    fn a_collective_that_never_ends_is_named_in_the_end() {
        let limits = Deadlines { collective: Duration::ZERO, ..Deadlines::default() };
        let activity = Activity::default();
        activity.receive(3);
        activity.enter(activity.intern("train.step"));
        let op = activity.start_op(&Op::Barrier, 2);
        let missing = || vec![(WorkerId::new(1), activity.progress())];
        assert!(Patience::new().reply(&Deadlines::default(), "sync_all", missing()).is_none());
        let late = Patience::new().reply(&limits, "sync_all", missing()).unwrap().to_string();
        assert!(late.contains("worker 1 does not answer: "), "{late}");
        assert!(late.ends_with("inside `train.step`, in barrier (operation 1)"), "{late}");
        op.end(true);
    }
}
