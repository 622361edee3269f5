//! The records of the workers at the moment of a failure, and the failure with a table of them.

use std::sync::{Arc, Weak};

use super::table::ReplyTable;
use crate::channel::Signal;
use crate::error::Error;
use crate::stream::collecting::{Collection, EVIDENCE};
use crate::sync;
use crate::worker_range::WorkerRange;

impl ReplyTable {
    /// Asks all workers for their `last` records.
    pub(crate) fn gather(&self, last: usize) -> Arc<Collection> {
        let lanes = self.lanes();
        let collection = Arc::new(Collection::new(lanes.members.world().size()));
        self.collect(&collection);
        for lane in lanes.iter() {
            if let Err(error) = lane.signal(Signal::Collect { last }) {
                tracing::debug!(%error, ?lane, "can't be asked for its workers' records");
                collection.expect_none_of(lanes.owned(lane));
            }
        }
        // The records of a lost node do not come, while those of a lost process are in shared memory and have come by now.
        collection.expect_none_of(self.fleet(|fleet| fleet.vacant()));
        collection
    }

    /// The records of the moment of the failure or loss, or of now.
    pub(in crate::stream) fn evidence(&self) -> Arc<Collection> {
        let evidence = self.lock().evidence.clone();
        evidence.unwrap_or_else(|| self.gather(EVIDENCE))
    }

    /// Expects no records of these workers, which are lost or dismissed.
    pub(super) fn expect_no_records(&self, workers: WorkerRange) {
        let collections: Vec<_> = sync::lock(&self.collections).iter().filter_map(Weak::upgrade).collect();
        collections.iter().for_each(|collection| collection.expect_none_of(workers));
    }

    /// Removes the recordings of workers that have no place any more from all requests.
    pub(super) fn forget(&self, places: WorkerRange) {
        let collections: Vec<_> = sync::lock(&self.collections).iter().filter_map(Weak::upgrade).collect();
        collections.iter().for_each(|collection| collection.forget(places));
    }

    /// Recordings that arrive are added to `collection`.
    pub(crate) fn collect(&self, collection: &Arc<Collection>) {
        let mut collections = sync::lock(&self.collections);
        collections.retain(|it| it.strong_count() > 0);
        collections.push(Arc::downgrade(collection));
    }

    /// Whether an error is not the first of its failure or loss.
    pub(in crate::stream) fn is_explained(&self, error: &Error) -> bool {
        let state = self.lock();
        match error {
            Error::Lost(_) | Error::Worker(_) => state.is_explained,
            _ => false,
        }
    }

    /// Replaces the failure or loss `error` by `explained`, the same one with a table of records if there is one. Does
    /// nothing if `error` is not, or no longer, that of the session.
    pub(in crate::stream) fn explain(&self, error: &Error, explained: &Error) {
        let mut state = self.lock();
        match (error, explained) {
            (Error::Worker(before), Error::Worker(after)) if state.failure.as_ref() == Some(before) => {
                state.failure = Some(after.clone());
            }
            (Error::Lost(_), Error::Lost(_)) if state.fleet.explain(error, explained) => {}
            _ => return,
        }
        state.is_explained = true;
    }

    /// Collects records before the abort of `epoch` ends the operations that workers are inside.
    pub(super) fn keep_evidence(&self, epoch: u64) {
        let evidence = self.gather(EVIDENCE);
        let mut state = self.lock();
        if state.epoch == epoch {
            state.evidence.get_or_insert(evidence);
        }
    }

    /// Collects records at the moment of a loss in `epoch`, in place of those that explain an earlier failure.
    pub(super) fn keep_evidence_of_loss(&self, epoch: u64) {
        let evidence = self.gather(EVIDENCE);
        let mut state = self.lock();
        if state.epoch == epoch {
            (state.evidence, state.is_explained) = (Some(evidence), false);
        }
    }
}
