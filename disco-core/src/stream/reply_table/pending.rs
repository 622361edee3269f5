//! One command that awaits replies.

use std::iter;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard};
use std::task::{Context, Poll, Waker};

use smallvec::SmallVec;

use crate::channel::Reply;
use crate::error::{Error, Result};
use crate::id::WorkerId;
use crate::members::Members;
use crate::sync;
use crate::value::Value;
use crate::worker_range::WorkerRange;
use crate::worker_set::WorkerSet;

/// A command that awaits replies. One caller waits for them.
#[derive(Debug)]
pub(crate) struct Pending {
    operation: &'static str,
    /// The workers at the time of the command; `None` if each worker's place is its number.
    members: Option<Members>,
    answers: Mutex<Answers>,
    /// Set after the answers are complete, and the table has removed the command.
    is_settled: AtomicBool,
}

#[derive(Debug)]
struct Answers {
    replied: WorkerSet,
    replies: Replies,
    /// Why the missing replies will never arrive.
    end: Option<Error>,
    /// The caller, once it has stopped polling.
    waiter: Option<Waker>,
}

/// The reply of each of some workers. Workers that reply without a value may be in one entry.
#[derive(Clone, Debug, Default)]
pub(crate) struct Replies(SmallVec<[(WorkerRange, Reply); 1]>);

impl Replies {
    pub(in crate::stream) fn iter(&self) -> impl Iterator<Item = &Reply> {
        self.0.iter().map(|(_, reply)| reply)
    }

    /// One reply for each worker, in the order of workers.
    pub(in crate::stream) fn of_each(self) -> impl Iterator<Item = Reply> {
        self.0.into_iter().flat_map(|(workers, reply)| iter::repeat_n(reply, workers.len()))
    }

    /// The values of replies that are no failures, in the order of workers.
    pub(crate) fn values(self) -> impl Iterator<Item = Value> {
        self.of_each().filter_map(Reply::ok)
    }
}

/// The caller that waits for answers that are complete now.
#[must_use]
pub(super) struct Waiter(Option<Waker>);

impl Pending {
    /// Command `operation`, which awaits a reply of each worker in `from`. With `end`, no reply will arrive.
    pub(super) fn new(
        operation: &'static str,
        members: Option<Members>,
        from: WorkerRange,
        end: Option<Error>,
    ) -> Self {
        let is_settled = end.is_some().into();
        let answers = Answers { replied: WorkerSet::new(from), replies: Replies::default(), end, waiter: None };
        Self { operation, members, answers: Mutex::new(answers), is_settled }
    }

    /// Adds the same reply of each of the workers with these places. One that was not asked, or has replied before, is
    /// ignored. Returns the caller if these replies were the last; the table then removes the command, and settles it.
    pub(super) fn add(&self, places: WorkerRange, mut reply: Reply) -> Option<Waiter> {
        let from = self.workers(places);
        if self.members.is_some() {
            reply = reply.map_err(|failure| failure.of_worker(from.first()));
        }
        let mut answers = self.lock();
        match answers.replied.insert(from) {
            0 => return None,
            new if new == from.len() => answers.replies.0.push((from, reply)),
            // Some of these workers have replied before: the new ones are found one by one.
            _ => {
                let known: Vec<WorkerRange> = answers.replies.0.iter().map(|(workers, _)| *workers).collect();
                let replied = &answers.replied;
                let is_new =
                    |worker: &WorkerId| replied.contains(*worker) && !known.iter().any(|it| it.contains(*worker));
                let new: Vec<_> = from.iter().filter(is_new).map(|worker| (worker.into(), reply.clone())).collect();
                answers.replies.0.extend(new);
            }
        }
        answers.replied.is_full().then(|| Waiter(answers.waiter.take()))
    }

    /// Ends the wait: the session was shut down before all replies arrived. The table has removed the command.
    pub(super) fn close(&self) {
        self.end(Error::Closed(self.operation.to_owned()));
    }

    /// Ends the wait: the workers that have not replied have left the session. The table has removed the command.
    pub(super) fn leave(&self) {
        let workers = WorkerRange::list(&self.missing());
        self.end(Error::state(format!("{}: {workers} left the session before the result came", self.operation)));
    }

    /// Ends the wait because of `why`. The table has removed the command.
    pub(in crate::stream) fn end(&self, why: Error) {
        let mut answers = self.lock();
        answers.end.get_or_insert(why);
        let waiter = Waiter(answers.waiter.take());
        drop(answers);
        self.settle(waiter);
    }

    /// Lets a caller that polls see the answers, or wakes it.
    pub(super) fn settle(&self, waiter: Waiter) {
        self.is_settled.store(true, Ordering::Release);
        if let Some(waker) = waiter.0 {
            waker.wake();
        }
    }

    pub(super) fn is_settled(&self) -> bool {
        self.is_settled.load(Ordering::Acquire)
    }

    /// The workers that have these places.
    fn workers(&self, places: WorkerRange) -> WorkerRange {
        self.members.as_ref().map_or(places, |members| members.workers(places))
    }

    /// Whether one of the workers with these places has not replied.
    pub(super) fn is_missing(&self, places: WorkerRange) -> bool {
        let workers = self.workers(places);
        self.lock().replied.missing().any(|worker| workers.contains(worker))
    }

    /// The replies in worker order once all have arrived, or the error that ended the wait; none before that. Takes no
    /// lock until then.
    pub(in crate::stream) fn take(&self) -> Option<Result<Replies>> {
        if self.is_settled() { self.lock().take() } else { None }
    }

    /// [`Self::take`] by a caller that is woken once there is a result.
    pub(in crate::stream) fn poll_take(&self, context: &mut Context<'_>) -> Poll<Result<Replies>> {
        let mut answers = self.lock();
        match answers.take() {
            Some(result) => Poll::Ready(result),
            None => {
                answers.waiter = Some(context.waker().clone());
                Poll::Pending
            }
        }
    }

    /// Workers that have not replied.
    pub(in crate::stream) fn missing(&self) -> Vec<WorkerId> {
        self.lock().replied.missing().collect()
    }

    fn lock(&self) -> MutexGuard<'_, Answers> {
        sync::lock(&self.answers)
    }
}

impl Answers {
    fn take(&mut self) -> Option<Result<Replies>> {
        match &self.end {
            _ if self.replied.is_full() => {
                let mut replies = std::mem::take(&mut self.replies);
                replies.0.sort_unstable_by_key(|(workers, _)| workers.first());
                Some(Ok(replies))
            }
            Some(end) => Some(Err(end.clone())),
            None => None,
        }
    }
}
