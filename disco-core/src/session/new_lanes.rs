//! Lanes to new workers: how they start, get places in the session, and end.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use crate::channel::{Channel, NO_OTHER_WORKERS, Signal};
use crate::error::{Error, Result};
use crate::id::WorkerId;
use crate::stream::lane_set::Lanes;
use crate::stream::reply_table::{LaneInbox, ReplyTable};
use crate::worker_range::WorkerRange;

/// Time limit for the shutdown of workers that the session does not use.
pub(super) const END_LIMIT: Duration = Duration::from_secs(3);

/// A lane to new workers. Unless the session takes it, its reports are ignored once it is dropped.
pub(super) struct NewLane {
    lane: Arc<dyn Channel>,
    inbox: Arc<LaneInbox>,
    is_taken: bool,
}

impl Drop for NewLane {
    fn drop(&mut self) {
        if !self.is_taken {
            self.inbox.dismiss(self.lane.facts().workers);
        }
    }
}

impl NewLane {
    /// A lane that has not started.
    pub(super) fn new(lane: Arc<dyn Channel>, table: &Arc<ReplyTable>) -> Self {
        Self { lane, inbox: LaneInbox::new(table), is_taken: false }
    }

    pub(super) fn start(&self) -> Result<()> {
        self.lane.start(self.inbox.clone())
    }

    /// The lane, which owns its places from now on, and its inbox.
    pub(super) fn take(mut self, table: &ReplyTable) -> (Arc<dyn Channel>, Arc<LaneInbox>) {
        table.take_over(&self.inbox, self.lane.facts().workers);
        self.is_taken = true;
        (self.lane.clone(), self.inbox.clone())
    }
}

/// Lanes to new workers in the places of `lost`. Neighbours that had one lane are replaced together.
pub(super) fn replacements(lanes: &Lanes, lost: &BTreeSet<WorkerId>) -> Result<Vec<Arc<dyn Channel>>> {
    let have_one_owner = |one, other| Arc::ptr_eq(lanes.owner(one), lanes.owner(other));
    let (mut left, mut new) = (lost.clone(), Vec::new());
    while let Some(part) = WorkerRange::cover(left.iter().copied(), have_one_owner).first() {
        let refused = |why| Error::state(format!("{} can't be replaced: {why}", lanes.members.workers(*part)));
        let starts = lanes.owner(part.first()).starts().ok_or_else(|| Error::state(NO_OTHER_WORKERS));
        let made = starts.and_then(|starts| starts.replacement(*part)).map_err(refused)?;
        let is_filled = |place| made.iter().any(|lane| lane.facts().workers.contains(place));
        left.retain(|place| !part.contains(*place) && !is_filled(*place));
        new.extend(made);
    }
    Ok(new)
}

/// Ends new workers that the session does not use, so that no two workers have one place after the next start.
pub(super) fn end(lanes: &[NewLane]) {
    for NewLane { lane, inbox, .. } in lanes {
        inbox.dismiss(lane.facts().workers);
        close(lane);
    }
}

/// Ends the workers of a lane that the session does not use.
pub(super) fn close(lane: &Arc<dyn Channel>) {
    // Fails if the lane was not started.
    _ = lane.signal(Signal::Shutdown);
    if let Err(error) = lane.close(END_LIMIT) {
        tracing::warn!(%error, ?lane, "workers that are not used do not end");
    }
}
