//! What came up from the workers: replies that somebody waits for, and the first failure.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, Weak};

use event_listener::Event;

use crate::channel::{Channel, Inbox, Notice, Reply, Signal};
use crate::error::{Error, Failure, Result};
use crate::id::WorkerId;
use crate::sync;
use crate::worker_range::WorkerRange;

/// The session's inbox.
#[derive(Debug, Default)]
pub(super) struct Mail {
    state: Mutex<State>,
    /// Whether `state` has a failure; read without the lock.
    failed: AtomicBool,
    /// A lane has room again, or the session failed.
    pub(super) room: Event,
    /// Set once; weak, since lanes own the mail.
    lanes: OnceLock<Vec<Weak<dyn Channel>>>,
}

#[derive(Debug, Default)]
struct State {
    epoch: u64,
    /// The root cause of this epoch.
    failure: Option<Arc<Failure>>,
    /// The end of the session.
    lost: Option<Error>,
    pending: HashMap<u64, Arc<Pending>>,
}

/// A command that wants replies.
#[derive(Debug)]
pub(super) struct Pending {
    operation: &'static str,
    answers: Mutex<Answers>,
    /// All replies are here, or none will come.
    settled: AtomicBool,
    /// Follows `settled`.
    pub(super) done: Event,
}

#[derive(Debug)]
struct Answers {
    missing: Vec<WorkerId>,
    replies: Vec<(WorkerId, Reply)>,
    /// Why the missing ones never come.
    end: Option<Error>,
}

/// Forgets a pending command when nobody waits for it any more.
#[derive(Debug)]
pub(super) struct Expected<'a> {
    mail: &'a Mail,
    seq: u64,
    pub(super) pending: Arc<Pending>,
}

impl Mail {
    pub(super) fn set_lanes(&self, lanes: &[Arc<dyn Channel>]) {
        self.lanes.get_or_init(|| lanes.iter().map(Arc::downgrade).collect());
    }

    /// Prepares for replies to command `seq`, which is `operation`'s.
    pub(super) fn expect(&self, operation: &'static str, seq: u64, from: Vec<WorkerId>) -> Expected<'_> {
        let mut state = self.lock();
        let end = state.lost.clone();
        let (settled, replies) = (end.is_some().into(), Vec::with_capacity(from.len()));
        let answers = Mutex::new(Answers { missing: from, replies, end });
        let pending = Arc::new(Pending { operation, answers, settled, done: Event::new() });
        state.pending.insert(seq, pending.clone());
        Expected { mail: self, seq, pending }
    }

    /// Fails once a worker has, or once one is gone.
    pub(super) fn check(&self) -> Result<()> {
        if !self.failed.load(Ordering::Acquire) {
            return Ok(());
        }
        self.check_lost()?;
        self.root_cause().map_or(Ok(()), |failure| Err(Error::Worker(failure)))
    }

    /// Fails once a worker is gone.
    pub(super) fn check_lost(&self) -> Result<()> {
        self.lock().lost.clone().map_or(Ok(()), Err)
    }

    /// The failure that all others follow from.
    pub(super) fn root_cause(&self) -> Option<Arc<Failure>> {
        self.lock().failure.clone()
    }

    /// Starts an epoch, if this one has failed.
    pub(super) fn next_epoch(&self) -> Option<u64> {
        let mut state = self.lock();
        state.failure.take()?;
        state.epoch += 1;
        self.failed.store(state.lost.is_some(), Ordering::Release);
        Some(state.epoch)
    }

    /// Ends the session for good.
    pub(super) fn lose(&self, why: &Error) {
        let mut state = self.lock();
        if state.lost.is_some() {
            return;
        }
        state.lost = Some(why.clone());
        self.failed.store(true, Ordering::Release);
        let (epoch, cause) = (state.epoch, why.to_string().into());
        let pending = std::mem::take(&mut state.pending);
        drop(state);
        self.abort(epoch, cause);
        // Last: wakers run code of the program's executor, which may use the session.
        pending.into_values().for_each(|pending| pending.end(why.clone()));
    }

    /// Ends all waits for replies. The workers have left or were given up.
    pub(super) fn close(&self) {
        let pending = std::mem::take(&mut self.lock().pending);
        pending.into_values().for_each(|pending| pending.close());
    }

    /// Tells all lanes, and those who wait for room.
    fn abort(&self, epoch: u64, cause: Arc<str>) {
        for lane in self.lanes.get().into_iter().flatten().filter_map(Weak::upgrade) {
            if let Err(error) = lane.urgent(Signal::Abort { epoch, cause: cause.clone() }) {
                tracing::debug!(%error, ?lane, "can't be told of the abort");
            }
        }
        self.room.notify(usize::MAX);
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        sync::lock(&self.state)
    }
}

impl Inbox for Mail {
    fn reply(&self, from: WorkerId, seq: u64, reply: Reply) {
        let mut state = self.lock();
        let Some(pending) = state.pending.get(&seq).cloned() else { return };
        let mut answers = pending.lock();
        let Some(asked) = answers.missing.iter().position(|worker| *worker == from) else { return };
        answers.missing.swap_remove(asked);
        answers.replies.push((from, reply));
        if answers.missing.is_empty() {
            state.pending.remove(&seq);
            drop((answers, state));
            pending.settle();
        }
    }

    fn notice(&self, from: WorkerId, notice: Notice) {
        match notice {
            Notice::Failed { epoch, failure } => {
                tracing::debug!(%from, epoch, %failure, "failed");
                let mut state = self.lock();
                if epoch < state.epoch {
                    return;
                }
                let first = state.failure.is_none();
                // A failure that only follows from another gives way to it, whichever comes first.
                if state.failure.as_ref().is_none_or(|known| known.aborted && !failure.aborted) {
                    state.failure = Some(failure.clone());
                }
                self.failed.store(true, Ordering::Release);
                drop(state);
                if first {
                    self.abort(epoch, failure.to_string().into());
                }
            }
        }
    }

    fn room(&self, _: WorkerRange) {
        self.room.notify(usize::MAX);
    }

    fn left(&self, workers: WorkerRange) {
        let mut state = self.lock();
        let unanswered = state.pending.extract_if(|_, pending| pending.is_missing(&workers));
        let unanswered: Vec<_> = unanswered.map(|(_, pending)| pending).collect();
        drop(state);
        unanswered.iter().for_each(|pending| pending.close());
    }

    fn lost(&self, _: WorkerRange, why: Error) {
        tracing::error!(%why, "workers lost");
        self.lose(&why);
    }
}

impl Pending {
    /// The session was shut down before all replies came.
    fn close(&self) {
        self.end(Error::Closed(self.operation.to_owned()));
    }

    fn end(&self, why: Error) {
        self.lock().end.get_or_insert(why);
        self.settle();
    }

    fn is_missing(&self, workers: &WorkerRange) -> bool {
        self.lock().missing.iter().any(|worker| workers.contains(*worker))
    }

    fn settle(&self) {
        self.settled.store(true, Ordering::Release);
        self.done.notify(usize::MAX);
    }

    /// The replies in the order of the workers, once all are here, or why they never will be.
    pub(super) fn take(&self) -> Option<Result<Vec<Reply>>> {
        if !self.settled.load(Ordering::Acquire) {
            return None;
        }
        let mut answers = self.lock();
        match &answers.end {
            _ if answers.missing.is_empty() => {
                let mut replies = std::mem::take(&mut answers.replies);
                replies.sort_unstable_by_key(|(worker, _)| *worker);
                Some(Ok(replies.into_iter().map(|(_, reply)| reply).collect()))
            }
            Some(end) => Some(Err(end.clone())),
            None => None,
        }
    }

    /// Who has not replied.
    pub(super) fn missing(&self) -> Vec<WorkerId> {
        self.lock().missing.clone()
    }

    fn lock(&self) -> MutexGuard<'_, Answers> {
        sync::lock(&self.answers)
    }
}

impl Drop for Expected<'_> {
    fn drop(&mut self) {
        self.mail.lock().pending.remove(&self.seq);
    }
}

#[cfg(test)]
mod tests {
    use std::ops::Range;
    use std::sync::mpsc;
    use std::task::{Context, Wake, Waker};
    use std::thread;
    use std::time::Duration;

    use futures_lite::FutureExt as _;

    use super::*;
    use crate::error::{LossCause, LostPeer};
    use crate::value::Value;

    fn all(range: Range<u32>) -> Vec<WorkerId> {
        range.map(WorkerId::new).collect()
    }

    fn text(expected: &Expected<'_>) -> Option<String> {
        expected.pending.take().map(|taken| taken.map_or_else(|error| error.to_string(), |all| format!("{all:?}")))
    }

    #[test]
    fn a_wait_ends_when_a_worker_that_has_not_replied_leaves() {
        let mail = Mail::default();
        let (one, both) = (mail.expect("sync_worker", 1, all(1..2)), mail.expect("sync_all", 2, all(0..2)));
        mail.reply(WorkerId::new(0), 2, Ok(Value::None));
        mail.left(WorkerRange::new(0..1));
        assert_eq!((text(&one), text(&both)), (None, None), "worker 0 has replied to all that it was asked");
        mail.reply(WorkerId::new(1), 2, Ok(Value::None));
        mail.left(WorkerRange::new(1..2));
        assert_eq!(text(&one).unwrap(), "sync_worker: the session is shut down");
        assert_eq!(text(&both).unwrap(), "[Ok(None), Ok(None)]", "replies that came before are delivered");
    }

    #[test]
    fn a_loss_that_was_known_first_is_what_waits_end_with() {
        let mail = Mail::default();
        let before = mail.expect("get", 1, all(0..1));
        let peer = LostPeer::Workers { workers: WorkerRange::new(1..2), node: None };
        mail.lose(&Error::lost(peer, LossCause::Other("it is gone".into())));
        let after = mail.expect("get", 2, all(0..1));
        mail.close();
        for expected in [before, after] {
            assert_eq!(text(&expected).unwrap(), "worker 1 lost: it is gone");
        }
    }

    /// An executor that polls as soon as a task is woken, on the thread that wakes it.
    struct Inline(Arc<Mail>, Mutex<mpsc::Sender<()>>);

    impl Wake for Inline {
        fn wake(self: Arc<Self>) {
            _ = self.0.check();
            _ = self.1.lock().unwrap().send(());
        }
    }

    #[test]
    fn a_waker_may_use_the_session() {
        let ends: [fn(&Mail); 4] = [
            |mail| mail.lose(&Error::NoCommunicator),
            |mail| mail.close(),
            |mail| mail.left(WorkerRange::new(0..1)),
            |mail| mail.reply(WorkerId::new(0), 1, Ok(Value::None)),
        ];
        for end in ends {
            let mail = Arc::new(Mail::default());
            let (tell, told) = mpsc::channel();
            let waker = Waker::from(Arc::new(Inline(mail.clone(), Mutex::new(tell))));
            let other = mail.clone();
            thread::spawn(move || {
                let expected = mail.expect("get", 1, all(0..1));
                let mut done = expected.pending.done.listen();
                assert!(done.poll(&mut Context::from_waker(&waker)).is_pending());
                end(&other);
            });
            told.recv_timeout(Duration::from_secs(10)).expect("the waker waits for a lock that its caller holds");
        }
    }
}
