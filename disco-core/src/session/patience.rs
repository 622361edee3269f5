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

    /// The end of a wait for a reply, if `worker` has kept it waiting too long. User code may take its time, unless there
    /// is a deadline for calls; a collective has its own.
    pub(super) fn reply(
        &mut self,
        limits: &Deadlines,
        operation: &str,
        worker: WorkerId,
        progress: &Progress,
    ) -> Option<Error> {
        let idle = self.idle(worker, progress);
        let limit = match &progress.inside {
            Some(_) => limits.call?,
            None => limits.reply,
        };
        let state = || format!("{worker} does not answer: {progress}");
        (idle >= limit).then(|| Error::Deadline { operation: operation.into(), after: limit, state: state() })
    }

    /// The end of a wait for room, if the worker that is furthest behind has finished nothing for too long.
    pub(super) fn room(&mut self, limits: &Deadlines, worker: WorkerId, progress: &Progress) -> Option<Error> {
        let after = self.idle(worker, progress);
        let state = progress.to_string();
        (after >= limits.stall).then_some(Error::Stalled { worker, after: limits.stall, state })
    }
}
