//! One command that awaits replies.

use std::iter;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard};

use event_listener::Event;

use crate::channel::Reply;
use crate::error::{Error, Result};
use crate::id::WorkerId;
use crate::members::Members;
use crate::sync;
use crate::worker_range::WorkerRange;
use crate::worker_set::WorkerSet;

/// A command that awaits replies.
#[derive(Debug)]
pub(in crate::session) struct Pending {
    pub(super) operation: &'static str,
    /// The workers at the time of the command; `None` if each worker's place is its number.
    pub(super) members: Option<Members>,
    pub(super) answers: Mutex<Answers>,
    /// All replies have arrived, or no more will arrive.
    pub(super) settled: AtomicBool,
    /// Notified after `settled` is set.
    pub(in crate::session) done: Event,
}

#[derive(Debug)]
pub(super) struct Answers {
    pub(super) replied: WorkerSet,
    /// The reply of each of these workers. Workers that reply without a value may be in one entry.
    pub(super) replies: Vec<(WorkerRange, Reply)>,
    /// Why the missing replies will never arrive.
    pub(super) end: Option<Error>,
}

impl Pending {
    /// Ends the wait: the session was shut down before all replies arrived.
    pub(super) fn close(&self) {
        self.end(Error::Closed(self.operation.to_owned()));
    }

    pub(super) fn end(&self, why: Error) {
        self.lock().end.get_or_insert(why);
        self.settle();
    }

    /// The workers that have these places.
    pub(super) fn workers(&self, places: WorkerRange) -> WorkerRange {
        self.members.as_ref().map_or(places, |members| members.workers(places))
    }

    /// Whether one of the workers with these places has not replied.
    pub(super) fn is_missing(&self, places: WorkerRange) -> bool {
        let workers = self.workers(places);
        self.lock().replied.missing().any(|worker| workers.contains(worker))
    }

    pub(super) fn settle(&self) {
        self.settled.store(true, Ordering::Release);
        self.done.notify(usize::MAX);
    }

    /// The replies in worker order once all have arrived, or the error that ended the wait; none before that.
    pub(in crate::session) fn take(&self) -> Option<Result<Vec<Reply>>> {
        if !self.settled.load(Ordering::Acquire) {
            return None;
        }
        let mut answers = self.lock();
        match &answers.end {
            _ if answers.replied.is_full() => {
                let mut replies = std::mem::take(&mut answers.replies);
                replies.sort_unstable_by_key(|(workers, _)| workers.first());
                let each = replies.into_iter().flat_map(|(workers, reply)| iter::repeat_n(reply, workers.len()));
                Some(Ok(each.collect()))
            }
            Some(end) => Some(Err(end.clone())),
            None => None,
        }
    }

    /// Workers that have not replied.
    pub(in crate::session) fn missing(&self) -> Vec<WorkerId> {
        self.lock().replied.missing().collect()
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, Answers> {
        sync::lock(&self.answers)
    }
}
