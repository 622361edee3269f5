//! Losses of workers, and the end of a loss when the workers are replaced.

use std::collections::BTreeSet;
use std::sync::atomic::Ordering;

use super::pending::BEING_RESIZED;
use super::table::{ReplyTable, TableState};
use crate::error::{Error, Result};
use crate::id::WorkerId;
use crate::worker_range::WorkerRange;

/// The lost workers of a session.
#[derive(Debug, PartialEq, Eq)]
pub(in crate::session) enum Losses {
    /// The session is not lost.
    None,
    /// The workers with these places are to be replaced. Empty if they were, but the session has not begun an epoch since.
    Workers(BTreeSet<WorkerId>),
}

impl TableState {
    /// The reason why a command that is submitted now gets no replies.
    pub(super) fn end(&self) -> Option<Error> {
        self.lost.clone().filter(|_| !self.is_replacing)
    }
}

impl ReplyTable {
    /// Accepts any state.
    pub(in crate::session) fn check_nothing(&self) -> Result<()> {
        Ok(())
    }

    /// Fails if there are losses whose replacement has not begun. For the first commands of new workers.
    pub(in crate::session) fn check_replaced(&self) -> Result<()> {
        self.lock().end().map_or(Ok(()), Err)
    }

    /// The number of the epoch.
    pub(in crate::session) fn epoch(&self) -> u64 {
        self.lock().epoch
    }

    /// Ends the session because the lane that owns `places` has refused a frame. Once all of their workers are lost, they
    /// can be replaced.
    pub(in crate::session) fn lose_lane(&self, places: impl Iterator<Item = WorkerId>, why: &Error) {
        self.lose_with(why, |state| state.cut_off.extend(places));
    }

    /// Ends the session because the workers with these places are lost, which also explains why their lane has refused a
    /// frame.
    pub(super) fn lose_workers(&self, places: WorkerRange, why: &Error) {
        self.lose_with(why, |state| {
            if !state.cut_off.is_empty() && state.lost_workers.is_empty() {
                state.lost = Some(why.clone());
            }
            state.lost_workers.extend(places);
        });
        self.expect_no_records(places);
    }

    /// The lost workers that [`Self::take_losses`] would return now.
    pub(in crate::session) fn known_losses(&self) -> BTreeSet<WorkerId> {
        let state = self.lock();
        match state.cut_off.is_subset(&state.lost_workers) {
            true => state.lost_workers.clone(),
            false => BTreeSet::new(),
        }
    }

    /// A method has returned the failure of this epoch.
    pub(in crate::session) fn note_failure_told(&self) {
        self.lock().is_told = true;
    }

    /// Fails with a failure of a worker that no method has returned.
    pub(in crate::session) fn check_told(&self) -> Result<()> {
        let state = self.lock();
        match &state.failure {
            Some(failure) if !state.is_told => Err(Error::Worker(failure.clone())),
            _ => Ok(()),
        }
    }

    /// Takes the loss that no method has returned.
    pub(in crate::session) fn take_untold(&self) -> Option<Error> {
        self.lock().untold.take()
    }

    /// Takes the lost workers out of the table, for a caller that replaces them. The caller holds the order ticket, so that
    /// no lane is about to refuse a frame.
    ///
    /// # Errors
    /// The session is lost for another reason, or the losses that explain it were not reported yet.
    pub(in crate::session) fn take_losses(&self) -> Result<Losses> {
        let mut state = self.lock();
        let Some(why) = &state.lost else { return Ok(Losses::None) };
        if !state.cut_off.is_subset(&state.lost_workers) {
            return Err(why.clone());
        }
        state.cut_off.clear();
        state.is_replacing = true;
        Ok(Losses::Workers(std::mem::take(&mut state.lost_workers)))
    }

    /// Puts back the losses that [`Self::take_losses`] has taken: the workers were not replaced.
    pub(in crate::session) fn put_back(&self, lost: BTreeSet<WorkerId>) {
        let mut state = self.lock();
        state.is_replacing &= lost.is_empty();
        state.lost_workers.extend(lost);
    }

    /// The session takes no commands before [`Self::revive`]: its workers change. Forgets the losses of those that have left.
    pub(in crate::session) fn change_members(&self) {
        let mut state = self.lock();
        let TableState { lost_workers, cut_off, members, .. } = &mut *state;
        lost_workers.retain(|place| members.worker(*place).is_some());
        cut_off.retain(|place| members.worker(*place).is_some());
        if state.lost.is_none() {
            (state.lost, state.is_replacing) = (Some(Error::state(BEING_RESIZED)), true);
            self.failed.store(true, Ordering::Release);
        }
    }

    /// Begins the next epoch of a lost session, which takes no commands before [`Self::revive`].
    pub(in crate::session) fn begin_next_epoch(&self) -> u64 {
        let mut state = self.lock();
        (state.failure, state.is_explained, state.is_told, state.evidence) = (None, false, false, None);
        state.epoch += 1;
        state.epoch
    }

    /// Ends the loss, so that the session takes commands again, and returns the loss that no method has returned. Returns
    /// none if more workers were lost meanwhile.
    pub(in crate::session) fn revive(&self) -> Option<Option<Error>> {
        let mut state = self.lock();
        if state.end().is_some() {
            return None;
        }
        (state.lost, state.is_replacing) = (None, false);
        let untold = state.untold.take();
        self.failed.store(state.failure.is_some(), Ordering::Release);
        drop(state);
        self.has_capacity.notify(usize::MAX);
        Some(untold)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::{LossCause, LostPeer};

    fn loss(workers: std::ops::Range<u32>) -> (WorkerRange, Error) {
        let workers = WorkerRange::new(workers);
        (workers, Error::peer_lost(LostPeer::Workers { workers, node: None }, LossCause::ConnectionClosed))
    }

    fn workers(numbers: impl IntoIterator<Item = u32>) -> Losses {
        Losses::Workers(numbers.into_iter().map(WorkerId::new).collect())
    }

    #[test]
    fn losses_that_overlap_are_the_losses_of_each_worker() {
        let table = ReplyTable::default();
        assert_eq!(table.take_losses().unwrap(), Losses::None);
        for (lost, why) in [loss(2..3), loss(1..4), loss(6..7)] {
            table.lose_workers(lost, &why);
        }
        assert_eq!(table.take_losses().unwrap(), workers([1, 2, 3, 6]));
        assert_eq!(table.take_losses().unwrap(), workers([]), "they were taken");
        assert!(table.check_replaced().is_ok() && table.check_lost().is_err());
        table.put_back([WorkerId::new(6)].into());
        assert!(table.revive().is_none(), "worker 6 is still lost");
        assert_eq!(table.take_losses().unwrap(), workers([6]));
        let untold = table.revive().unwrap().expect("no method has returned it");
        assert_eq!(untold.to_string(), loss(2..3).1.to_string());
        assert!(table.check_lost().is_ok());
    }

    #[test]
    fn a_refused_frame_is_explained_by_the_losses_of_all_workers_of_the_lane() {
        let table = ReplyTable::default();
        table.lose_lane([1, 2].map(WorkerId::new).into_iter(), &Error::state("the lane is full"));
        assert_eq!(table.take_losses().unwrap_err().to_string(), "the lane is full");
        let (lost, why) = loss(1..2);
        table.lose_workers(lost, &why);
        assert_eq!(table.take_losses().unwrap_err().to_string(), why.to_string(), "the cause is known now");
        table.lose_workers(loss(2..3).0, &why);
        assert_eq!(table.take_losses().unwrap(), workers([1, 2]));
    }
}
