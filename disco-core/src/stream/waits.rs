//! Waits of a session for its workers: for replies, for capacity of lanes, and for shutdown.

use std::hint;
use std::process;
use std::sync::atomic::Ordering;
use std::thread;
use std::time::{Duration, Instant};

use futures_lite::future;
use smallvec::SmallVec;

use super::asking::Asked;
use super::command_stream::CommandStream;
use super::deadline_watch::{DeadlineWatch, rounded, waits_for_others};
use super::reply_table::Replies;
use crate::activity::{self, Progress};
use crate::channel::{FrameSize, Inbox as _};
use crate::env;
use crate::error::{Error, Result};
use crate::id::WorkerId;

/// Spin time of a wait for a reply: longer than a round trip between threads that have to be woken, so that one slow
/// round trip does not make the next one slow.
const REPLY_SPIN: Duration = Duration::from_micros(100);
/// Polls of a wait before it yields, if the workers need the processor.
const SPINS: u32 = 16;
/// Polls of a wait before it yields, if each worker has a processor: longer than most round trips.
const SPINS_WITH_PROCESSORS: u32 = 100;
/// Number of yields to other threads for each yield to other tasks of the executor, which costs more.
const TASK_INTERVAL: u32 = 16;

impl CommandStream {
    /// Checks whether the wait for capacity of lanes has taken too long.
    ///
    /// # Errors
    /// [`Error::Stalled`], naming the worker that has finished the fewest commands.
    pub(super) fn check_stall(&self, watch: &mut DeadlineWatch, size: FrameSize) -> Result<()> {
        let lanes = self.lanes();
        let full = lanes.iter().filter(|lane| lane.room(size) == 0);
        let named = |place| Some((lanes.members.worker(place)?, place));
        let workers = full
            .flat_map(|lane| lanes.owned(lane).filter_map(named).map(|(worker, place)| (worker, lane.progress(place))));
        let last = workers.min_by_key(|(_, progress)| (progress.finished, waits_for_others(progress)));
        match last.and_then(|(worker, progress)| watch.stall(&self.limits, worker, &progress)) {
            None => Ok(()),
            Some(stalled) => {
                self.is_hung.store(true, Ordering::Relaxed);
                Err(stalled)
            }
        }
    }

    /// Polls for replies for as long as most round trips take, without reading the clock. Returns none if they take longer.
    pub(super) fn poll_for(&self, asked: &Asked<'_>) -> Option<Result<Replies>> {
        let polls = match env::spin_time() {
            Some(Duration::ZERO) => 1,
            _ if asked.lanes.has_processors => SPINS_WITH_PROCESSORS,
            _ => SPINS,
        };
        let _polling = self.sleepers.start_polling(&asked.lanes);
        let polled: SmallVec<[_; 4]> = asked.lanes.iter().filter_map(|lane| lane.polled()).collect();
        for _ in 0..polls {
            polled.iter().for_each(|lane| lane.poll());
            if let Some(replies) = asked.expected.pending.take() {
                return Some(replies);
            }
            hint::spin_loop();
        }
        None
    }

    /// Waits for replies that have not come [at once](Self::poll_for). A long wait logs a warning with the workers that delay
    /// it.
    ///
    /// # Errors
    /// [`Error::Deadline`], or the reason why the replies will never arrive.
    pub(super) async fn replies(&self, asked: &Asked<'_>) -> Result<Replies> {
        let spin_time = env::spin_time().unwrap_or(REPLY_SPIN);
        let (mut round, mut begun) = (0_u32, None);
        let mut polling = self.sleepers.start_polling(&asked.lanes);
        while !spin_time.is_zero() {
            round += 1;
            // Yields first to worker threads that wait for a processor, then to other tasks of this executor.
            thread::yield_now();
            if round.is_multiple_of(TASK_INTERVAL) {
                // This future may not be polled again for long.
                drop(polling);
                let asleep = self.sleepers.sleep();
                asked.lanes.poll();
                future::yield_now().await;
                drop(asleep);
                polling = self.sleepers.start_polling(&asked.lanes);
            }
            asked.lanes.poll();
            if let Some(replies) = asked.expected.pending.take() {
                return replies;
            }
            // Most replies come in the first round, which reads no clock.
            if begun.get_or_insert_with(Instant::now).elapsed() >= spin_time {
                break;
            }
        }
        drop(polling);
        // In a box, so that the futures of methods stay small.
        Box::pin(self.late_replies(asked)).await
    }

    /// Waits for replies that have not come in the time for which a wait polls.
    async fn late_replies(&self, asked: &Asked<'_>) -> Result<Replies> {
        let Asked { operation, lanes, .. } = asked;
        let pending = &asked.expected.pending;
        let _asleep = self.sleepers.sleep();
        lanes.poll();
        if let Some(worker) = self.worker_here().filter(|worker| pending.missing().contains(worker)) {
            return Err(Error::state(format!(
                "{operation}: {worker} of this session would wait for itself: its functions can't call methods that wait for it"
            )));
        }
        let ticks = self.ticker.start();
        let mut watch = DeadlineWatch::new();
        loop {
            let tick = ticks.next();
            let replies = async { Some(future::poll_fn(|context| pending.poll_take(context)).await) };
            let tick = async {
                tick.await;
                None
            };
            if let Some(replies) = future::or(replies, tick).await {
                return replies;
            }
            // A reply that was left behind, because a worker has corrupted shared memory, is only late.
            lanes.poll();
            if let Some(replies) = pending.take() {
                return replies;
            }
            let missing = self.waited_for(pending.missing());
            if let Some(warning) = watch.warning(&self.limits, operation, &missing) {
                tracing::warn!("{warning}");
            }
            if let Some((late, calls)) = watch.reply(&self.limits, operation, missing) {
                self.is_hung.store(true, Ordering::Relaxed);
                let cause = format!("the deadline of {operation} has passed").into();
                if let Err(error) = calls.iter().try_for_each(|command| self.reply_table.cancel(*command, &cause)) {
                    tracing::debug!(%error, "the late calls can't be cancelled");
                }
                return Err(late);
            }
        }
    }

    /// The worker of this session that the calling thread runs.
    fn worker_here(&self) -> Option<WorkerId> {
        let here = (Some(process::id()), Some(activity::thread_of_worker()?));
        let worker =
            self.reply_table.status()?.workers.into_iter().find(|worker| (worker.process, worker.thread) == here)?;
        Some(WorkerId::new(worker.worker as u32))
    }

    /// The progress of `missing`, in the order of workers, and of the workers inside a function that `missing` wait for inside a collective.
    fn waited_for(&self, missing: Vec<WorkerId>) -> Vec<(WorkerId, Progress)> {
        let lanes = self.lanes();
        let progress = |worker| (worker, lanes.progress(worker));
        let mut waited_for: Vec<_> = missing.iter().copied().map(progress).collect();
        if waited_for.iter().any(|(_, progress)| waits_for_others(progress)) {
            let others =
                lanes.members.world().workers().filter(|worker| missing.binary_search(worker).is_err()).map(progress);
            waited_for.extend(others.filter(|(_, it)| it.inside.is_some() && !waits_for_others(it)));
        }
        waited_for
    }

    /// Logs the workers that a shutdown waits for.
    pub(crate) fn warn_of_shutdown(&self, waited: Duration, limit: Duration) {
        let inside = self.waited_for(self.lanes().members.world().workers().collect()).into_iter();
        let inside = inside.filter(|(_, it)| it.inside.is_some() && !waits_for_others(it));
        let inside: Vec<String> = inside.map(|(worker, it)| format!("{worker} ({it})")).collect();
        let workers = if inside.is_empty() { "the workers to leave".to_owned() } else { inside.join(", ") };
        let waited = rounded(waited);
        tracing::warn!(
            "shutdown has waited {waited:?} for {workers}; it gives up after {limit:?} (`Deadlines::close`)"
        );
    }
}
