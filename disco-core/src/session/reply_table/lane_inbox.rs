//! The inbox of one lane of a session.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use super::pending::Pending;
use super::table::ReplyTable;
use crate::channel::{Inbox, Notice, Reply};
use crate::error::Error;
use crate::id::WorkerId;
use crate::status::Status;
use crate::sync;
use crate::worker_range::WorkerRange;

/// The inbox of one lane. It passes all reports on to the table, except the end of workers that the lane has reported as
/// lost before or that another lane owns by now: a node is lost, or leaves, with all nodes behind it.
pub(in crate::session) struct LaneInbox {
    table: Arc<ReplyTable>,
    /// Workers whose end the lane no longer reports.
    gone: Mutex<BTreeMap<WorkerId, Gone>>,
}

#[derive(Clone, Debug)]
enum Gone {
    /// The lane has reported the loss of the worker.
    Lost(Error),
    /// Another lane owns the worker, or the session does not use it.
    GivenUp,
    /// A resize has dismissed the worker, which may still reply to earlier commands.
    Dismissed,
    /// The worker was given up or dismissed, and has left or is lost since.
    Away,
}

impl LaneInbox {
    /// The inbox of a lane that owns all its workers.
    pub(in crate::session) fn new(table: &Arc<ReplyTable>) -> Arc<Self> {
        let inbox = Arc::new(Self { table: table.clone(), gone: Mutex::default() });
        table.lock().inboxes.push(Arc::downgrade(&inbox));
        inbox
    }

    /// Ignores all later reports of the end of these workers.
    pub(in crate::session) fn give_up(&self, workers: WorkerRange) {
        self.note(workers, &Gone::GivenUp);
    }

    fn note(&self, workers: WorkerRange, how: &Gone) {
        sync::lock(&self.gone).extend(workers.iter().map(|worker| (worker, how.clone())));
    }

    /// Reports the losses again that came before the workers were workers of the session.
    pub(in crate::session) fn repeat_losses(&self) {
        let gone = sync::lock(&self.gone).clone();
        for (worker, gone) in gone {
            if let Gone::Lost(why) = gone {
                self.table.lost(worker.into(), why);
            }
        }
    }

    /// The workers among `workers` that are not gone. From now on, they are lost because of `why` if there is one. Ends the
    /// waits for dismissed workers among the others, because a worker sends no reply after the report of its end.
    fn own(&self, workers: WorkerRange, why: Option<&Error>) -> Vec<WorkerRange> {
        let mut gone = sync::lock(&self.gone);
        let mut dismissed = Vec::new();
        for (worker, gone) in gone.iter_mut().filter(|(worker, _)| workers.contains(**worker)) {
            match gone {
                Gone::Lost(_) | Gone::Away => continue,
                Gone::GivenUp => {}
                Gone::Dismissed => dismissed.push(*worker),
            }
            *gone = Gone::Away;
        }
        let own = WorkerRange::cover(workers.iter().filter(|worker| !gone.contains_key(worker)), |_, _| true);
        if let Some(why) = why {
            gone.extend(own.iter().flat_map(WorkerRange::iter).map(|worker| (worker, Gone::Lost(why.clone()))));
        }
        drop(gone);
        let unanswered = dismissed.into_iter().flat_map(|place| self.table.dismissals(place.into(), 0));
        unanswered.for_each(|(pending, why)| pending.end(why));
        own
    }
}

impl ReplyTable {
    /// From now on, the lane of `inbox` owns `workers`.
    pub(in crate::session) fn take_over(&self, inbox: &Arc<LaneInbox>, workers: WorkerRange) {
        let others = self.inboxes().into_iter().filter(|other| !Arc::ptr_eq(other, inbox));
        others.for_each(|other| other.give_up(workers));
        self.forget(workers);
    }

    /// Whether the workers of all these places, which were given up, have left or are lost.
    pub(in crate::session) fn are_away(&self, places: &[WorkerId]) -> bool {
        let inboxes = self.inboxes();
        let is_away = |place, inbox: &Arc<LaneInbox>| matches!(sync::lock(&inbox.gone).get(place), Some(Gone::Away));
        places.iter().all(|place| inboxes.iter().any(|inbox| is_away(place, inbox)))
    }

    /// From now on, no lane owns these places. No caller waits for their workers' replies to commands before number `first`;
    /// the workers may end before they execute later commands. Returns the later commands that await replies of these
    /// workers, with the error of each. The caller [ends](Pending::end) their waits once it has released the order ticket.
    pub(in crate::session) fn dismiss(&self, places: WorkerRange, first: u64) -> Vec<(Arc<Pending>, Error)> {
        self.inboxes().iter().for_each(|inbox| inbox.note(places, &Gone::Dismissed));
        self.forget(places);
        ReplyTable::give_up(self, places);
        self.dismissals(places, first)
    }

    /// The commands from number `first` on that await replies of these workers, which were dismissed, with the error of
    /// each. The table no longer has them.
    fn dismissals(&self, places: WorkerRange, first: u64) -> Vec<(Arc<Pending>, Error)> {
        let unanswered = self.take_unanswered(places, first).into_iter();
        unanswered.map(|pending| (pending.clone(), pending.dismissal(places))).collect()
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
        // Held meanwhile: the records of a worker that was given up would come after `ReplyTable::forget`.
        let gone = sync::lock(&self.gone);
        if !matches!(gone.get(&from), Some(Gone::GivenUp | Gone::Dismissed | Gone::Away)) {
            self.table.recording(from, bytes);
        }
    }

    fn room(&self, workers: WorkerRange) {
        self.table.room(workers);
    }

    fn left(&self, workers: WorkerRange) {
        self.own(workers, None).into_iter().for_each(|workers| self.table.left(workers));
    }

    fn lost(&self, workers: WorkerRange, why: Error) {
        self.own(workers, Some(&why)).into_iter().for_each(|workers| self.table.lost(workers, why.clone()));
    }

    fn number(&self, place: WorkerId) -> WorkerId {
        self.table.members().worker(place).unwrap_or(place)
    }

    fn status(&self) -> Option<Status> {
        self.table.status()
    }
}
