//! The inbox of one lane of a session.

use std::sync::{Arc, Weak};

use super::ReplyTable;
use crate::channel::{Channel, Inbox, Notice, Reply};
use crate::error::Error;
use crate::id::WorkerId;
use crate::status::Status;
use crate::worker_range::WorkerRange;

/// The inbox of one lane. Passes everything on to the table, except the end of workers that were replaced: a node is
/// lost, or leaves, with all nodes behind it, also with those that have lanes of their own by then.
pub(in crate::session) struct LaneInbox {
    table: Arc<ReplyTable>,
    lane: Weak<dyn Channel>,
}

impl LaneInbox {
    pub(in crate::session) fn new(table: &Arc<ReplyTable>, lane: &Arc<dyn Channel>) -> Self {
        Self { table: table.clone(), lane: Arc::downgrade(lane) }
    }

    /// The workers that no later lane of the session has.
    fn own(&self, workers: WorkerRange) -> Vec<WorkerRange> {
        let lanes = self.table.lanes();
        let at = lanes.iter().position(|lane| Weak::ptr_eq(&Arc::downgrade(lane), &self.lane));
        // A lane that starts is behind all others.
        let later = at.map_or(&[][..], |at| &lanes[at + 1..]);
        let mut own: Vec<WorkerRange> = Vec::new();
        for worker in workers.iter().filter(|it| !later.iter().any(|lane| lane.workers().contains(*it))) {
            match own.last_mut() {
                Some(last) if last.indices().end == worker.index() => {
                    *last = WorkerRange::new(last.first().index() as u32..worker.index() as u32 + 1)
                }
                _ => own.push(worker.into()),
            }
        }
        own
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
        self.table.recording(from, bytes);
    }

    fn room(&self, workers: WorkerRange) {
        self.table.room(workers);
    }

    fn left(&self, workers: WorkerRange) {
        self.own(workers).into_iter().for_each(|workers| self.table.left(workers));
    }

    fn lost(&self, workers: WorkerRange, why: Error) {
        self.own(workers).into_iter().for_each(|workers| self.table.lost(workers, why.clone()));
    }

    fn status(&self) -> Option<Status> {
        self.table.status()
    }
}
