//! The end of a session: its shutdown, and its drop.

use std::panic::{self, AssertUnwindSafe};
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread;
use std::time::{Duration, Instant};

use futures_lite::future;

use super::lane_session::LaneSession;
use crate::channel::{Channel, FrameSize, Inbox as _, Signal};
use crate::command::Command;
use crate::error::{Error, Result};
use crate::stream::fleet::Lost;
use crate::stream::lane_set::Lanes;
use crate::stream::large::Values;
use crate::stream::reply_table::ReplyTable;
use crate::stream::timeline::Recorder;

/// Limit of the wait for workers when a session is dropped, or shut down after a wait has passed its deadline. Each
/// lane with workers that do not leave adds up to 2 s.
const DROP_LIMIT: Duration = Duration::from_secs(3);
/// Interval of the warnings of a shutdown that waits for workers.
const SHUTDOWN_WARNING: Duration = Duration::from_secs(2);

impl LaneSession {
    /// Implements [`Session::shutdown`](super::Session::shutdown).
    pub(super) async fn shut_down(&self) -> Result<()> {
        self.owner.check()?;
        if self.closing.is_done() {
            return Ok(());
        }
        let was_live = self.stream.reply_table.check_lost().is_ok();
        if !self.stream.closed.swap(true, Ordering::SeqCst) {
            // Wakes commands that wait for a full lane, so that they fail.
            self.stream.reply_table.has_capacity.notify(usize::MAX);
        }
        // A caller with the order ticket may not have seen the end.
        drop(self.stream.order());
        // A worker may wait until its results are taken.
        self.stream.reply_table.cancel_streams(&"the session is shut down".into());
        // Their workers are in the processes of this session's workers.
        let subsets = self.shut_down_subsets().await;
        let lanes = self.tell_workers_to_leave();
        let limit = if self.stream.is_hung.load(Ordering::Relaxed) {
            self.stream.limits.close.min(DROP_LIMIT)
        } else {
            self.stream.limits.close
        };
        let (reply_table, recorder) = (self.stream.reply_table.clone(), self.stream.recorder.clone());
        let helpers = self.helpers.clone();
        let close = move || {
            let closed = close(&lanes, &reply_table, recorder.as_ref(), limit);
            helpers.finish(&reply_table);
            closed?;
            // A worker that was lost during the shutdown has not executed its last commands.
            if was_live { reply_table.check_lost() } else { Ok(()) }
        };
        let mut run = pin!(self.closing.run(close));
        let (ticks, begun, mut warned) = (self.stream.ticker.start(), Instant::now(), Instant::now());
        loop {
            let tick = async {
                ticks.next().await;
                None
            };
            if let Some(result) = future::or(async { Some(run.as_mut().await) }, tick).await {
                self.detach();
                return result.and(subsets);
            }
            if warned.elapsed() >= SHUTDOWN_WARNING.min(self.stream.limits.warn) {
                warned = Instant::now();
                self.stream.warn_of_shutdown(begun.elapsed(), limit);
            }
        }
    }

    /// Tells the workers to leave, once. Returns the lanes.
    fn tell_workers_to_leave(&self) -> Lanes {
        let mut order = self.stream.order();
        // Behind all submitted commands if the lanes have capacity, otherwise ahead of them.
        if !std::mem::replace(&mut order.is_over, true)
            && (!order.lanes.have_capacity(FrameSize::Small)
                || self.stream.send(&mut order, Values::SMALL, |_| Ok(Command::Shutdown)).is_err())
        {
            signal_shutdown(&order.lanes);
        }
        order.lanes.clone()
    }

    /// Ends the session without an orderly shutdown. Blocks until the workers have left, for at most [`DROP_LIMIT`], and
    /// that time for each subset.
    pub(super) fn end(&self) {
        if self.closing.is_done() {
            return;
        }
        if !self.stream.closed.swap(true, Ordering::SeqCst) {
            self.stream.reply_table.has_capacity.notify(usize::MAX);
        }
        self.end_subsets();
        // Ends running operations, also if the future of an unfinished shutdown was dropped.
        self.stream.reply_table.lose(
            Lost::Session,
            &if thread::panicking() {
                Error::state("the program has panicked")
            } else {
                Error::Closed("drop".to_owned())
            },
        );
        let (lanes, limit) = (self.stream.lanes(), DROP_LIMIT.min(self.stream.limits.close));
        signal_shutdown(&lanes);
        if let Err(error) = close(&lanes, &self.stream.reply_table, self.stream.recorder.as_ref(), limit) {
            tracing::error!(%error, "session dropped");
        }
        self.helpers.finish(&self.stream.reply_table);
        self.closing.note_end();
    }
}

impl Drop for LaneSession {
    fn drop(&mut self) {
        if self.owner.is_here() {
            self.end();
        } else {
            self.leak();
        }
    }
}

/// Tells the workers to leave, ahead of queued commands.
fn signal_shutdown(lanes: &[Arc<dyn Channel>]) {
    for lane in lanes {
        if let Err(error) = lane.signal(Signal::Shutdown) {
            tracing::warn!(%error, ?lane, "can't be told to shut down");
        }
    }
}

/// Blocks until the workers have left, for at most `limit`, ends the waits for missing replies, and passes the timeline
/// on. Closes every lane, even if another lane fails or panics.
fn close(
    lanes: &[Arc<dyn Channel>],
    reply_table: &ReplyTable,
    recorder: Option<&Recorder>,
    limit: Duration,
) -> Result<()> {
    let start = Instant::now();
    let mut result = Ok(());
    for lane in lanes {
        let close = AssertUnwindSafe(|| lane.close(limit.saturating_sub(start.elapsed())));
        let panicked =
            |_| Err(Error::state(format!("the lane to {} panicked when it was closed", lane.facts().workers)));
        let closed = panic::catch_unwind(close).unwrap_or_else(panicked);
        result = result.and(closed.map_err(|error| match error {
            Error::Stuck { workers, .. } => Error::Stuck { workers, after: limit },
            other => other,
        }));
    }
    reply_table.close();
    if let Some(recorder) = recorder {
        let finish = || recorder.finish(lanes, &reply_table.members(), reply_table.status().unwrap_or_default());
        // The sink is code of the program.
        if panic::catch_unwind(AssertUnwindSafe(finish)).is_err() {
            tracing::error!("the function that gets the timeline of the session panicked");
        }
    }
    result
}
