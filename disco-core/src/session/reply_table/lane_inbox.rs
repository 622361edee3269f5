//! The inbox of one lane of a session.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use super::ReplyTable;
use crate::channel::{Inbox, Notice, Reply};
use crate::error::Error;
use crate::id::WorkerId;
use crate::status::Status;
use crate::sync;
use crate::worker_range::WorkerRange;

/// The inbox of one lane. It passes everything on to the table, but what it is told of the end of workers only if the
/// lane still speaks for them: a node is lost, or leaves, with all nodes behind it, including nodes that were lost before
/// or that another lane owns by now.
pub(in crate::session) struct LaneInbox {
    table: Arc<ReplyTable>,
    /// The workers that the lane speaks for, and whether it has reported their loss.
    workers: Mutex<BTreeMap<WorkerId, bool>>,
}

impl LaneInbox {
    /// The inbox of a lane that speaks for all its `workers`.
    pub(in crate::session) fn new(table: &Arc<ReplyTable>, workers: WorkerRange) -> Arc<Self> {
        let workers = workers.iter().map(|worker| (worker, false)).collect();
        let inbox = Arc::new(Self { table: table.clone(), workers: Mutex::new(workers) });
        sync::lock(&table.inboxes).push(Arc::downgrade(&inbox));
        inbox
    }

    /// The lane no longer speaks for these workers.
    pub(in crate::session) fn give_up(&self, workers: WorkerRange) {
        sync::lock(&self.workers).retain(|worker, _| !workers.contains(*worker));
    }

    /// Those of `workers` that the lane speaks for and has not reported as lost. They are lost from now on if `are_lost`.
    fn own(&self, workers: WorkerRange, are_lost: bool) -> Vec<WorkerRange> {
        let mut all = sync::lock(&self.workers);
        let own = all.iter_mut().filter(|(worker, is_lost)| workers.contains(**worker) && !**is_lost);
        let own = own.map(|(worker, is_lost)| {
            *is_lost = are_lost;
            *worker
        });
        WorkerRange::cover(own)
    }
}

impl ReplyTable {
    /// From now on, the lane of `inbox` alone speaks for `workers`.
    pub(in crate::session) fn take_over(&self, inbox: &Arc<LaneInbox>, workers: WorkerRange) {
        let mut inboxes = sync::lock(&self.inboxes);
        inboxes.retain(|other| other.strong_count() > 0);
        let others = inboxes.iter().filter_map(|other| other.upgrade()).filter(|other| !Arc::ptr_eq(other, inbox));
        others.for_each(|other| other.give_up(workers));
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
        if sync::lock(&self.workers).contains_key(&from) {
            self.table.recording(from, bytes);
        }
    }

    fn room(&self, workers: WorkerRange) {
        self.table.room(workers);
    }

    fn left(&self, workers: WorkerRange) {
        self.own(workers, false).into_iter().for_each(|workers| self.table.left(workers));
    }

    fn lost(&self, workers: WorkerRange, why: Error) {
        self.own(workers, true).into_iter().for_each(|workers| self.table.lost(workers, why.clone()));
    }

    fn status(&self) -> Option<Status> {
        self.table.status()
    }
}
