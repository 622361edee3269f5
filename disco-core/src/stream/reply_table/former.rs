//! The workers of a lane whose end concerns the session no longer.

use std::collections::BTreeMap;
use std::sync::Mutex;

use crate::error::Error;
use crate::id::WorkerId;
use crate::sync;
use crate::worker_range::WorkerRange;

/// The former workers of one lane.
#[derive(Debug, Default)]
pub(super) struct FormerWorkers(Mutex<BTreeMap<WorkerId, Former>>);

#[derive(Clone, Debug)]
enum Former {
    /// The lane has reported the loss of the worker.
    Lost(Error),
    /// Another lane owns the worker's place, or the session does not use the worker.
    Dismissed,
    /// The worker was dismissed, and its end was reported since.
    Ended,
}

impl FormerWorkers {
    /// Ignores all later reports of the end of these workers.
    pub(super) fn dismiss(&self, workers: WorkerRange) {
        sync::lock(&self.0).extend(workers.iter().map(|worker| (worker, Former::Dismissed)));
    }

    /// Whether a worker that was dismissed has ended.
    pub(super) fn has_ended(&self, place: WorkerId) -> bool {
        matches!(sync::lock(&self.0).get(&place), Some(Former::Ended))
    }

    /// The workers that the lane has reported as lost, and why.
    pub(super) fn lost(&self) -> Vec<(WorkerId, Error)> {
        let former = sync::lock(&self.0);
        let lost = former.iter().filter_map(|(worker, former)| match former {
            Former::Lost(why) => Some((*worker, why.clone())),
            _ => None,
        });
        lost.collect()
    }

    /// Calls `act` unless the worker is dismissed. It is not dismissed meanwhile.
    pub(super) fn unless_dismissed(&self, worker: WorkerId, act: impl FnOnce()) {
        let former = sync::lock(&self.0);
        if !matches!(former.get(&worker), Some(Former::Dismissed | Former::Ended)) {
            act();
        }
    }

    /// The workers among `workers` whose end, which the lane reports now, concerns the session. From now on, they are lost
    /// because of `why` if there is one.
    pub(super) fn note_end(&self, workers: WorkerRange, why: Option<&Error>) -> Vec<WorkerRange> {
        let mut all = sync::lock(&self.0);
        let dismissed =
            all.iter_mut().filter(|(worker, former)| workers.contains(**worker) && matches!(former, Former::Dismissed));
        dismissed.for_each(|(_, former)| *former = Former::Ended);
        let own = WorkerRange::cover(workers.iter().filter(|worker| !all.contains_key(worker)), |_, _| true);
        if let Some(why) = why {
            all.extend(own.iter().flat_map(WorkerRange::iter).map(|worker| (worker, Former::Lost(why.clone()))));
        }
        own
    }
}
