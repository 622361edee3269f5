//! Waits of a session for its workers: for replies, for room in lanes, and for the end.

use std::sync::atomic::Ordering;
use std::thread;
use std::time::{Duration, Instant};

use futures_lite::future;

use super::lanes::LaneSession;
use super::mail::Expected;
use super::patience::{Patience, rounded, waits_for_others};
use crate::activity::Progress;
use crate::channel::{Channel, Reply};
use crate::error::Result;
use crate::id::WorkerId;

/// How long a wait for a reply stays awake: what it takes to wake a sleeping thread on another processor.
const AWAKE: Duration = Duration::from_micros(50);

impl LaneSession {
    /// Whether the wait for room of lanes has taken too long.
    ///
    /// # Errors
    /// [`Error::Stalled`], naming the worker that has finished least.
    pub(super) fn check_stall(&self, patience: &mut Patience, is_large: bool) -> Result<()> {
        let full = self.lanes.iter().filter(|lane| room(&***lane, is_large) == 0);
        let workers = full.flat_map(|lane| lane.workers().into_iter().map(|worker| (worker, lane.progress(worker))));
        let last = workers.min_by_key(|(_, progress)| (progress.finished, waits_for_others(progress)));
        match last.and_then(|(worker, progress)| patience.room(&self.limits, worker, &progress)) {
            None => Ok(()),
            Some(stalled) => {
                self.is_hung.store(true, Ordering::Relaxed);
                Err(stalled)
            }
        }
    }

    /// Waits for replies. Warns of a long wait, and of who holds it up.
    ///
    /// # Errors
    /// [`Error::Deadline`]; why the replies never come.
    pub(super) async fn replies(&self, operation: &str, expected: &Expected<'_>) -> Result<Vec<Reply>> {
        let pending = &expected.pending;
        let asked = Instant::now();
        while asked.elapsed() < AWAKE {
            if let Some(replies) = pending.take() {
                return replies;
            }
            // First to workers that have no processor, then to other tasks of this executor.
            thread::yield_now();
            future::yield_now().await;
        }
        let ticks = self.ticker.start();
        let mut patience = Patience::new();
        loop {
            let (done, tick) = (pending.done.listen(), ticks.next());
            if let Some(replies) = pending.take() {
                return replies;
            }
            future::or(done, tick).await;
            if let Some(replies) = pending.take() {
                return replies;
            }
            let missing = self.waited_for(pending.missing());
            if let Some(warning) = patience.warning(&self.limits, operation, &missing) {
                tracing::warn!("{warning}");
            }
            if let Some(late) = patience.reply(&self.limits, operation, missing) {
                self.is_hung.store(true, Ordering::Relaxed);
                return Err(late);
            }
        }
    }

    /// What `missing` are doing, and the workers inside a function that they wait for inside a collective.
    fn waited_for(&self, missing: Vec<WorkerId>) -> Vec<(WorkerId, Progress)> {
        let progress = |worker| (worker, self.lane_of(worker).progress(worker));
        let mut waited_for: Vec<_> = missing.iter().copied().map(progress).collect();
        if waited_for.iter().any(|(_, progress)| waits_for_others(progress)) {
            let others = self.world.workers().filter(|worker| !missing.contains(worker)).map(progress);
            waited_for.extend(others.filter(|(_, it)| it.inside.is_some() && !waits_for_others(it)));
        }
        waited_for
    }

    /// Logs the workers that a shutdown waits for.
    pub(super) fn warn_of_shutdown(&self, waited: Duration, limit: Duration) {
        let inside = self.waited_for(self.world.workers().collect()).into_iter();
        let inside = inside.filter(|(_, it)| it.inside.is_some() && !waits_for_others(it));
        let inside: Vec<String> = inside.map(|(worker, it)| format!("{worker} ({it})")).collect();
        let workers = if inside.is_empty() { "the workers to leave".to_owned() } else { inside.join(", ") };
        let waited = rounded(waited);
        tracing::warn!(
            "shutdown has waited {waited:?} for {workers}; it gives up after {limit:?} (`Deadlines::close`)"
        );
    }
}

/// Frames that a lane would take now, of any size or of at most [`SMALL_FRAME`] bytes of values.
pub(super) fn room(lane: &dyn Channel, is_large: bool) -> usize {
    if is_large { lane.room() } else { lane.room_for_small() }
}
