//! The inbox of one lane of a session.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use super::table::ReplyTable;
use crate::channel::{Inbox, Notice, Reply};
use crate::error::Error;
use crate::id::WorkerId;
use crate::status::Status;
use crate::sync;
use crate::worker_range::WorkerRange;

/// The inbox of one lane. It passes all reports on to the table, except the end of workers that the lane has reported as
/// lost before or that another lane owns by now: a node is lost, or leaves, with all nodes behind it.
pub(crate) struct LaneInbox {
    table: Arc<ReplyTable>,
    /// Workers of the lane whose end concerns the session no longer.
    former: Mutex<BTreeMap<WorkerId, Former>>,
}

#[derive(Clone, Debug)]
enum Former {
    /// The lane has reported the loss of the worker.
    Lost(Error),
    /// Another lane owns the worker's place, or the session does not use the worker.
    Dismissed,
    /// The worker was dismissed, and its end was reported since.
    Ended,
}

impl LaneInbox {
    /// The inbox of a lane that owns all its workers.
    pub(crate) fn new(table: &Arc<ReplyTable>) -> Arc<Self> {
        let inbox = Arc::new(Self { table: table.clone(), former: Mutex::default() });
        table.lock().inboxes.push(Arc::downgrade(&inbox));
        inbox
    }

    /// Ignores all later reports of the end of these workers.
    pub(crate) fn dismiss(&self, workers: WorkerRange) {
        sync::lock(&self.former).extend(workers.iter().map(|worker| (worker, Former::Dismissed)));
    }

    /// Reports the losses again that came before the workers were workers of the session.
    pub(crate) fn repeat_losses(&self) {
        let former = sync::lock(&self.former).clone();
        for (worker, former) in former {
            if let Former::Lost(why) = former {
                self.table.lost(worker.into(), why);
            }
        }
    }

    /// The workers among `workers` whose end, which the lane reports now, concerns the session. From now on, they are lost
    /// because of `why` if there is one.
    fn note_end(&self, workers: WorkerRange, why: Option<&Error>) -> Vec<WorkerRange> {
        let mut all = sync::lock(&self.former);
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

impl ReplyTable {
    /// From now on, the lane of `inbox` owns `workers`.
    pub(crate) fn take_over(&self, inbox: &Arc<LaneInbox>, workers: WorkerRange) {
        let others = self.inboxes().into_iter().filter(|other| !Arc::ptr_eq(other, inbox));
        others.for_each(|other| other.dismiss(workers));
        self.forget(workers);
    }

    /// Whether the workers of all these places, which were dismissed, have ended.
    pub(crate) fn have_ended(&self, places: &[WorkerId]) -> bool {
        let inboxes = self.inboxes();
        let has_ended =
            |place, inbox: &Arc<LaneInbox>| matches!(sync::lock(&inbox.former).get(place), Some(Former::Ended));
        places.iter().all(|place| inboxes.iter().any(|inbox| has_ended(place, inbox)))
    }

    /// From now on, no lane owns these places.
    pub(crate) fn dismiss(&self, places: WorkerRange) {
        self.inboxes().iter().for_each(|inbox| inbox.dismiss(places));
        self.forget(places);
        self.expect_no_records(places);
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
        // Held meanwhile: the records of a dismissed worker would come after `ReplyTable::forget`.
        let former = sync::lock(&self.former);
        if !matches!(former.get(&from), Some(Former::Dismissed | Former::Ended)) {
            self.table.recording(from, bytes);
        }
    }

    fn room(&self, workers: WorkerRange) {
        self.table.room(workers);
    }

    fn left(&self, workers: WorkerRange) {
        self.note_end(workers, None).into_iter().for_each(|workers| self.table.left(workers));
    }

    fn lost(&self, workers: WorkerRange, why: Error) {
        self.note_end(workers, Some(&why)).into_iter().for_each(|workers| self.table.lost(workers, why.clone()));
    }

    fn number(&self, place: WorkerId) -> WorkerId {
        self.table.members().worker(place).unwrap_or(place)
    }

    fn status(&self) -> Option<Status> {
        self.table.status()
    }
}
