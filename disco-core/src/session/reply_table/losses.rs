//! Losses of workers, and the end of a loss when the workers are replaced.

use std::sync::atomic::Ordering;

use super::ReplyTable;
use crate::error::{Error, Result};
use crate::id::WorkerId;
use crate::worker_range::WorkerRange;

/// The lost workers of a session.
#[derive(Debug, PartialEq, Eq)]
pub(in crate::session) enum Losses {
    /// The session is not lost.
    None,
    /// These workers are to be replaced, in order. Empty if they were, but the session has not
    /// begun an epoch since.
    Workers(Vec<WorkerRange>),
}

impl ReplyTable {
    /// Any state is good enough. For commands that are sent while the session is lost.
    pub(in crate::session) fn check_nothing(&self) -> Result<()> {
        Ok(())
    }

    /// Fails if workers are lost that nobody replaces yet. For commands of a session whose lost workers were replaced.
    pub(in crate::session) fn check_replaced(&self) -> Result<()> {
        let state = self.lock();
        match (&state.lost, state.lost_workers.is_empty() && state.cut_off.is_empty()) {
            (Some(why), false) => Err(why.clone()),
            _ => Ok(()),
        }
    }

    /// The number of the epoch.
    pub(in crate::session) fn epoch(&self) -> u64 {
        self.lock().epoch
    }

    /// Ends the session because the lane that owns `workers` has not taken a frame. Once all of them are lost, they can be
    /// replaced.
    pub(in crate::session) fn lose_lane(&self, workers: impl Iterator<Item = WorkerId>, why: &Error) {
        self.lock().cut_off.extend(workers);
        self.lose(why);
    }

    /// Records the loss of workers, which explains why their lane has not taken a frame.
    pub(super) fn note_loss(&self, workers: WorkerRange, why: &Error) {
        let mut state = self.lock();
        if !state.cut_off.is_empty() && state.lost_workers.is_empty() {
            state.lost = Some(why.clone());
        }
        state.lost_workers.push(workers);
        drop(state);
        self.has_capacity.notify(usize::MAX);
    }

    /// Takes the lost workers out of the table, for a caller that replaces them.
    ///
    /// # Errors
    /// The session is lost for another reason, or the losses that explain it were not reported yet.
    pub(in crate::session) fn take_losses(&self) -> Result<Losses> {
        let mut state = self.lock();
        let Some(why) = &state.lost else { return Ok(Losses::None) };
        let is_lost = |worker| state.lost_workers.iter().any(|lost| lost.contains(worker));
        let is_explained = state.cut_off.iter().copied().all(is_lost);
        if !is_explained {
            return Err(why.clone());
        }
        state.cut_off.clear();
        let mut lost = std::mem::take(&mut state.lost_workers);
        lost.sort_unstable_by_key(WorkerRange::first);
        Ok(Losses::Workers(lost))
    }

    /// Puts back what [`Self::take_losses`] has taken: the workers were not replaced.
    pub(in crate::session) fn put_back(&self, lost: Vec<WorkerRange>) {
        self.lock().lost_workers.extend(lost);
    }

    /// Begins the next epoch of a lost session, which takes no commands before [`Self::revive`].
    pub(in crate::session) fn begin_next_epoch(&self) -> u64 {
        let mut state = self.lock();
        (state.failure, state.is_explained, state.evidence) = (None, false, None);
        state.epoch += 1;
        state.epoch
    }

    /// Ends the loss, so that the session takes commands again. Returns false if more workers were lost meanwhile.
    pub(in crate::session) fn revive(&self) -> bool {
        let mut state = self.lock();
        if !state.lost_workers.is_empty() || !state.cut_off.is_empty() {
            return false;
        }
        state.lost = None;
        self.failed.store(state.failure.is_some(), Ordering::Release);
        drop(state);
        self.has_capacity.notify(usize::MAX);
        true
    }
}
