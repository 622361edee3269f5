//! The inbox of one lane of a session.

use std::sync::Arc;

use super::former::FormerWorkers;
use super::table::ReplyTable;
use crate::channel::{Inbox, Notice, Reply};
use crate::error::Error;
use crate::id::WorkerId;
use crate::status::Status;
use crate::worker_range::WorkerRange;

/// The inbox of one lane. It passes all reports on to the table, except the end of workers that the lane has reported as
/// lost before or that another lane owns by now: a node is lost, or leaves, with all nodes behind it.
pub(crate) struct LaneInbox {
    table: Arc<ReplyTable>,
    /// Workers of the lane whose end concerns the session no longer.
    former: Arc<FormerWorkers>,
}

impl LaneInbox {
    /// The inbox of a lane that owns all its workers.
    pub(crate) fn new(table: &Arc<ReplyTable>) -> Arc<Self> {
        let former = Arc::<FormerWorkers>::default();
        table.lock().former.push(Arc::downgrade(&former));
        Arc::new(Self { table: table.clone(), former })
    }

    /// Ignores all later reports of the end of these workers.
    pub(crate) fn dismiss(&self, workers: WorkerRange) {
        self.former.dismiss(workers);
    }

    /// Reports the losses again that came before the workers were workers of the session.
    pub(crate) fn repeat_losses(&self) {
        for (worker, why) in self.former.lost() {
            self.table.lost(worker.into(), why);
        }
    }
}

impl ReplyTable {
    /// From now on, the lane of `inbox` owns `workers`.
    pub(crate) fn take_over(&self, inbox: &Arc<LaneInbox>, workers: WorkerRange) {
        let others = self.former().into_iter().filter(|other| !Arc::ptr_eq(other, &inbox.former));
        others.for_each(|other| other.dismiss(workers));
        self.forget(workers);
    }

    /// Whether the workers of all these places, which were dismissed, have ended.
    pub(crate) fn have_ended(&self, places: &[WorkerId]) -> bool {
        let former = self.former();
        places.iter().all(|place| former.iter().any(|former| former.has_ended(*place)))
    }

    /// From now on, no lane owns these places.
    pub(crate) fn dismiss(&self, places: WorkerRange) {
        self.former().iter().for_each(|former| former.dismiss(places));
        self.forget(places);
        self.expect_no_records(places);
        // A program may await the result of a call after its worker has left.
        self.take_unanswered(places).iter().for_each(|pending| pending.leave());
    }
}

impl Inbox for LaneInbox {
    fn reply(&self, from: WorkerId, seq: u64, reply: Reply) {
        self.table.reply(from, seq, reply);
    }

    fn replies(&self, from: WorkerRange, seq: u64) {
        self.table.replies(from, seq);
    }

    fn notice(&self, from: WorkerId, notice: Notice) {
        self.table.notice(from, notice);
    }

    fn recording(&self, from: WorkerId, bytes: Arc<[u8]>) {
        // Meanwhile it is not dismissed: its records would come after `ReplyTable::forget`.
        self.former.unless_dismissed(from, || self.table.recording(from, bytes));
    }

    fn room(&self, workers: WorkerRange) {
        self.table.room(workers);
    }

    fn left(&self, workers: WorkerRange) {
        self.former.note_end(workers, None).into_iter().for_each(|workers| self.table.left(workers));
    }

    fn lost(&self, workers: WorkerRange, why: Error) {
        self.former.note_end(workers, Some(&why)).into_iter().for_each(|workers| self.table.lost(workers, why.clone()));
    }

    fn number(&self, place: WorkerId) -> WorkerId {
        self.table.members().worker(place).unwrap_or(place)
    }

    fn status(&self) -> Option<Status> {
        self.table.status()
    }
}
