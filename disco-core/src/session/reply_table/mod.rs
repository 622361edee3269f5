//! The session's inbox: awaited replies of workers, and the first failure.

mod evidence;
mod lane_inbox;
mod losses;
mod pending;

use std::collections::{BTreeSet, VecDeque};
use std::process;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, Weak};
use std::time::Instant;

use event_listener::Event;

use super::collecting::{Collection, is_of_collective};
use super::lane_set::Lanes;
use crate::channel::{Channel, Inbox, Notice, Reply, Signal};
use crate::error::{Error, Failure, Result};
use crate::id::WorkerId;
use crate::members::Members;
use crate::metrics;
use crate::status::Status;
use crate::sync;
use crate::value::Value;
use crate::worker_range::WorkerRange;

pub(super) use lane_inbox::LaneInbox;
pub(super) use losses::Losses;
pub(super) use pending::{Pending, Replies};

/// Pending replies, the first failure and the loss of one session.
#[derive(Debug, Default)]
pub(super) struct ReplyTable {
    state: Mutex<TableState>,
    /// Whether `state` has a failure or a loss; can be read without the lock.
    failed: AtomicBool,
    /// Notified when a lane accepts frames again or the session failed.
    pub(super) has_capacity: Event,
    /// Notified when workers are lost.
    pub(super) has_losses: Event,
    /// Number of the last command.
    commands: AtomicU64,
    /// Requests for recordings that have not ended.
    collections: Mutex<Vec<Weak<Collection>>>,
}

#[derive(Debug, Default)]
struct TableState {
    epoch: u64,
    /// When the session began to start its workers.
    begun: Option<Instant>,
    /// Weak, because lanes own the table.
    lanes: Vec<Weak<dyn Channel>>,
    /// The inboxes of all lanes.
    inboxes: Vec<Weak<LaneInbox>>,
    /// The workers of the session. Lanes know them by their places.
    members: Members,
    /// The root cause of this epoch.
    failure: Option<Arc<Failure>>,
    /// Whether a method has returned the failure.
    is_told: bool,
    /// Why the session has ended, for good unless it is a loss of workers that are replaced.
    lost: Option<Error>,
    /// The first loss that no method has returned.
    untold: Option<Error>,
    /// Whether the lost workers are being replaced, and no other loss was reported since.
    is_replacing: bool,
    /// Places of lost workers whose replacement has not begun.
    lost_workers: BTreeSet<WorkerId>,
    /// Places of workers of lanes that have refused a frame.
    cut_off: BTreeSet<WorkerId>,
    /// The records of the moment of the failure or loss.
    evidence: Option<Arc<Collection>>,
    /// `failure` or `lost` ends with a table of records.
    is_explained: bool,
    /// Commands that await replies, by number, in ascending order.
    pending: VecDeque<(u64, Arc<Pending>)>,
}

impl TableState {
    /// The place of a command among the pending ones.
    fn find(&self, seq: u64) -> Result<usize, usize> {
        self.pending.binary_search_by_key(&seq, |(seq, _)| *seq)
    }
}

/// A wait for replies. Dropping it removes the pending command from the table.
#[derive(Debug)]
pub(super) struct Expected<'a> {
    reply_table: &'a ReplyTable,
    pub(super) seq: u64,
    pub(super) pending: Arc<Pending>,
}

impl ReplyTable {
    /// The lanes are about to start.
    pub(super) fn begin(&self) {
        self.lock().begun = Some(Instant::now());
    }

    /// Sets the lanes of the session, and its workers.
    pub(super) fn set_lanes(&self, lanes: &Lanes) {
        let mut state = self.lock();
        state.lanes = lanes.iter().map(Arc::downgrade).collect();
        state.members = lanes.members.clone();
    }

    /// The workers of the session.
    pub(super) fn members(&self) -> Members {
        self.lock().members.clone()
    }

    /// Records the number of a command that lanes are about to get.
    pub(super) fn note_command(&self, number: u64) {
        self.commands.store(number, Ordering::Relaxed);
    }

    /// Registers command `seq` of `operation`, the next one of the session, which awaits a reply of each worker in `from`.
    pub(super) fn expect(&self, operation: &'static str, seq: u64, from: WorkerRange) -> Expected<'_> {
        let mut state = self.lock();
        let end = state.end();
        let members = (!state.members.is_plain()).then(|| state.members.clone());
        let pending = Arc::new(Pending::new(operation, members, from, end));
        if !pending.is_settled() {
            debug_assert!(state.pending.back().is_none_or(|(last, _)| *last < seq));
            state.pending.push_back((seq, pending.clone()));
        }
        Expected { reply_table: self, seq, pending }
    }

    /// Fails once a worker has failed or is lost.
    pub(super) fn check(&self) -> Result<()> {
        if !self.failed.load(Ordering::Acquire) {
            return Ok(());
        }
        self.check_lost()?;
        self.root_cause().map_or(Ok(()), |failure| Err(Error::Worker(failure)))
    }

    /// Fails once a worker is lost.
    pub(super) fn check_lost(&self) -> Result<()> {
        if !self.failed.load(Ordering::Acquire) {
            return Ok(());
        }
        self.lock().lost.clone().map_or(Ok(()), Err)
    }

    /// The failure that caused the other failures of this epoch.
    pub(super) fn root_cause(&self) -> Option<Arc<Failure>> {
        self.lock().failure.clone()
    }

    /// Starts the next epoch if this one has failed.
    pub(super) fn next_epoch(&self) -> Option<u64> {
        let mut state = self.lock();
        state.failure.take()?;
        (state.is_explained, state.is_told, state.evidence) = (false, false, None);
        state.epoch += 1;
        self.failed.store(state.lost.is_some(), Ordering::Release);
        Some(state.epoch)
    }

    /// Ends the session. Only lost workers can be replaced.
    pub(super) fn lose(&self, why: &Error) {
        self.lose_with(why, |_| ());
    }

    /// [`ReplyTable::lose`] with a `note` of the lost workers, at the same moment.
    fn lose_with(&self, why: &Error, note: impl FnOnce(&mut TableState)) {
        let mut state = self.lock();
        note(&mut state);
        state.is_replacing = false;
        let is_first = state.lost.is_none();
        state.lost.get_or_insert_with(|| why.clone());
        state.untold.get_or_insert_with(|| why.clone());
        self.failed.store(true, Ordering::Release);
        // The end of the session is no failure of its epoch.
        let epoch = if matches!(why, Error::Closed(_)) { u64::MAX } else { state.epoch };
        let cause = why.to_string().into();
        // While workers are replaced, these are commands for the new workers.
        let pending = std::mem::take(&mut state.pending);
        drop(state);
        if is_first && matches!(why, Error::Lost(_)) {
            self.keep_evidence_of_loss(epoch);
        }
        self.abort(epoch, cause);
        self.has_losses.notify(usize::MAX);
        // Last: wakers run code of the program's executor, which may use the session.
        pending.into_iter().for_each(|(_, pending)| pending.end(why.clone()));
    }

    /// Ends all waits for replies, after the workers have left or were detached.
    pub(super) fn close(&self) {
        let pending = std::mem::take(&mut self.lock().pending);
        pending.into_iter().for_each(|(_, pending)| pending.close());
    }

    /// Sends an abort to all lanes and wakes commands that wait for a full lane.
    fn abort(&self, epoch: u64, cause: Arc<str>) {
        for lane in self.lanes().iter() {
            if let Err(error) = lane.signal(Signal::Abort { epoch, cause: cause.clone() }) {
                tracing::debug!(%error, ?lane, "can't be told of the abort");
            }
        }
        self.has_capacity.notify(usize::MAX);
    }

    fn lanes(&self) -> Lanes {
        let (lanes, members) = {
            let state = self.lock();
            (state.lanes.iter().filter_map(Weak::upgrade).collect(), state.members.clone())
        };
        Lanes::new(lanes, members)
    }

    /// Adds the same reply of each of the workers with these places.
    fn add(&self, from: WorkerRange, seq: u64, reply: Reply) {
        let mut state = self.lock();
        let Ok(place) = state.find(seq) else { return };
        let Some(waiter) = state.pending[place].1.add(from, reply) else { return };
        let settled = state.pending.remove(place);
        drop(state);
        if let Some((_, pending)) = settled {
            pending.settle(waiter);
        }
    }

    /// Removes the commands from number `first` on that await a reply of a worker with one of these places.
    fn take_unanswered(&self, places: WorkerRange, first: u64) -> Vec<Arc<Pending>> {
        let mut state = self.lock();
        let all = std::mem::take(&mut state.pending);
        let (unanswered, others): (VecDeque<_>, _) =
            all.into_iter().partition(|(number, pending)| *number >= first && pending.is_missing(places));
        state.pending = others;
        unanswered.into_iter().map(|(_, pending)| pending).collect()
    }

    /// The inboxes of the lanes that exist.
    fn inboxes(&self) -> Vec<Arc<LaneInbox>> {
        let mut state = self.lock();
        state.inboxes.retain(|inbox| inbox.strong_count() > 0);
        state.inboxes.iter().filter_map(Weak::upgrade).collect()
    }

    fn lock(&self) -> MutexGuard<'_, TableState> {
        sync::lock(&self.state)
    }
}

impl Inbox for ReplyTable {
    fn reply(&self, from: WorkerId, seq: u64, reply: Reply) {
        self.add(from.into(), seq, reply);
    }

    fn replies(&self, from: WorkerRange, seq: u64) {
        self.add(from, seq, Ok(Value::None));
    }

    fn notice(&self, from: WorkerId, notice: Notice) {
        match notice {
            Notice::Failed { epoch, failure } => {
                tracing::debug!(%from, epoch, %failure, "failed");
                let mut state = self.lock();
                let Some(worker) = state.members.worker(from).filter(|_| epoch >= state.epoch) else { return };
                let failure = failure.of_worker(worker);
                let first = state.failure.is_none();
                // A failure that follows from an abort may come before its cause.
                let is_evident = first && (failure.aborted || is_of_collective(&failure));
                // A root cause replaces a failure that only follows from an abort, in either order of arrival.
                if state.failure.as_ref().is_none_or(|known| known.aborted && !failure.aborted) {
                    state.failure = Some(failure.clone());
                }
                self.failed.store(true, Ordering::Release);
                drop(state);
                if first {
                    if is_evident {
                        self.keep_evidence(epoch);
                    }
                    self.abort(epoch, failure.to_string().into());
                }
            }
        }
    }

    fn recording(&self, from: WorkerId, bytes: Arc<[u8]>) {
        let collections: Vec<_> = sync::lock(&self.collections).iter().filter_map(Weak::upgrade).collect();
        collections.iter().for_each(|collection| collection.add(from, bytes.clone()));
    }

    fn room(&self, _: WorkerRange) {
        self.has_capacity.notify(usize::MAX);
    }

    fn left(&self, places: WorkerRange) {
        self.take_unanswered(places, 0).iter().for_each(|pending| pending.close());
    }

    fn lost(&self, places: WorkerRange, why: Error) {
        let workers = self.members().workers(places);
        if workers.is_empty() {
            // A resize has dropped them meanwhile.
            return;
        }
        let why = why.of_workers(workers);
        tracing::error!(%why, "workers lost");
        metrics::loss();
        self.lose_workers(places, &why);
    }

    fn status(&self) -> Option<Status> {
        let (begun, members) = (self.lock().begun?, self.members());
        let failure = self.check().err().map(|error| error.to_string());
        let mut status = Status {
            process: process::id(),
            uptime: begun.elapsed(),
            groups: members.world().groups(),
            failure,
            ..Status::default()
        };
        status.commands = self.commands.load(Ordering::Relaxed);
        self.lanes().iter().for_each(|lane| lane.describe(&mut status));
        status.keep_last(&members);
        Some(status)
    }
}

impl Drop for Expected<'_> {
    fn drop(&mut self) {
        if self.pending.is_settled() {
            return;
        }
        let mut state = self.reply_table.lock();
        if let Ok(place) = state.find(self.seq) {
            state.pending.remove(place);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;
    use std::task::{Context, Wake, Waker};
    use std::thread;
    use std::time::Duration;

    use super::*;
    use crate::error::{ErrorKind, LossCause, LostPeer};

    fn text(expected: &Expected<'_>) -> Option<String> {
        let each = |replies: Replies| format!("{:?}", replies.of_each().collect::<Vec<_>>());
        expected.pending.take().map(|taken| taken.map_or_else(|error| error.to_string(), each))
    }

    fn failure(worker: u32, message: &str) -> Arc<Failure> {
        Arc::new(Failure {
            worker: WorkerId::new(worker),
            command: 1,
            operation: "f".into(),
            register: None,
            message: message.into(),
            causes: Vec::new(),
            aborted: false,
            kind: ErrorKind::Broken,
            user: None,
        })
    }

    #[test]
    fn only_the_failure_of_the_session_is_replaced_by_its_explanation() {
        let reply_table = ReplyTable::default();
        let [root, other, explained] = [failure(0, "root"), failure(1, "other"), failure(0, "root, with a table")];
        reply_table.notice(WorkerId::new(0), Notice::Failed { epoch: 0, failure: root.clone() });
        reply_table.explain(&Error::Worker(other.clone()), &Error::Worker(other));
        assert_eq!(reply_table.root_cause(), Some(root.clone()));
        reply_table.explain(&Error::Worker(root), &Error::Worker(explained.clone()));
        assert_eq!(reply_table.root_cause(), Some(explained));
    }

    #[test]
    fn a_wait_ends_when_a_worker_that_has_not_replied_leaves() {
        let reply_table = ReplyTable::default();
        let (one, both) = (
            reply_table.expect("sync_worker", 1, WorkerRange::new(1..2)),
            reply_table.expect("sync_all", 2, WorkerRange::new(0..2)),
        );
        reply_table.reply(WorkerId::new(0), 2, Ok(Value::None));
        reply_table.left(WorkerRange::new(0..1));
        assert_eq!((text(&one), text(&both)), (None, None), "worker 0 has replied to all that it was asked");
        reply_table.reply(WorkerId::new(1), 2, Ok(Value::None));
        reply_table.left(WorkerRange::new(1..2));
        assert_eq!(text(&one).unwrap(), "sync_worker: the session is shut down");
        assert_eq!(text(&both).unwrap(), "[Ok(None), Ok(None)]", "replies that came before are delivered");
    }

    #[test]
    fn a_wait_for_a_worker_that_a_resize_dismisses_ends() {
        let reply_table = ReplyTable::default();
        let before = reply_table.expect("sync_worker", 1, WorkerRange::new(2..3));
        let other = reply_table.expect("get", 2, WorkerRange::new(0..1));
        let all = reply_table.expect("get_all", 3, WorkerRange::new(0..3));
        let unanswered = reply_table.dismiss(WorkerRange::new(2..3), 2);
        assert_eq!([&before, &other, &all].map(text), [const { None }; 3]);
        unanswered.into_iter().for_each(|(pending, why)| pending.end(why));
        assert_eq!(text(&all).unwrap(), "get_all: no reply of worker 2: the session is being resized");
        // These replies were on their way.
        reply_table.reply(WorkerId::new(2), 1, Ok(Value::None));
        reply_table.reply(WorkerId::new(0), 2, Ok(Value::None));
        assert_eq!([&before, &other].map(|expected| text(expected).unwrap()), ["[Ok(None)]", "[Ok(None)]"]);
    }

    #[test]
    fn a_wait_for_an_earlier_command_ends_when_the_dismissed_worker_ends_without_a_reply() {
        for is_lost in [false, true] {
            let reply_table = Arc::new(ReplyTable::default());
            let inbox = LaneInbox::new(&reply_table);
            let before = reply_table.expect("get", 1, WorkerRange::new(2..3));
            assert!(reply_table.dismiss(WorkerRange::new(2..3), 2).is_empty());
            assert_eq!(text(&before), None, "its reply may be on its way");
            match is_lost {
                true => inbox.lost(WorkerRange::new(1..3), Error::state("the connection is closed")),
                false => inbox.left(WorkerRange::new(2..3)),
            }
            assert_eq!(text(&before).unwrap(), "get: no reply of worker 2: the session is being resized");
        }
    }

    #[test]
    fn each_worker_replies_once_whether_its_replies_come_alone_or_with_those_of_others() {
        let reply_table = ReplyTable::default();
        let expected = reply_table.expect("sync_all", 1, WorkerRange::new(0..6));
        reply_table.reply(WorkerId::new(2), 1, Ok(Value::from(2)));
        reply_table.replies(WorkerRange::new(1..4), 1);
        reply_table.replies(WorkerRange::new(5..9), 1);
        assert_eq!((text(&expected), expected.pending.missing()), (None, [0, 4].map(WorkerId::new).into()));
        reply_table.replies(WorkerRange::new(0..5), 1);
        let none = "Ok(None), ";
        assert_eq!(text(&expected).unwrap(), format!("[{none}{none}Ok(Int(2)), {none}{none}Ok(None)]"));
    }

    #[test]
    fn waits_end_with_the_first_known_loss() {
        let reply_table = ReplyTable::default();
        let before = reply_table.expect("get", 1, WorkerRange::new(0..1));
        let peer = LostPeer::Workers { workers: WorkerRange::new(1..2), node: None };
        reply_table.lose(&Error::peer_lost(peer, LossCause::Other("it is gone".into())));
        let after = reply_table.expect("get", 2, WorkerRange::new(0..1));
        reply_table.close();
        for expected in [before, after] {
            assert_eq!(text(&expected).unwrap(), "worker 1 lost: it is gone");
        }
    }

    /// An executor that polls a woken task at once, on the thread that wakes it.
    struct Inline(Arc<ReplyTable>, Mutex<mpsc::Sender<()>>);

    impl Wake for Inline {
        fn wake(self: Arc<Self>) {
            _ = self.0.check();
            _ = self.1.lock().unwrap().send(());
        }
    }

    #[test]
    fn a_waker_may_use_the_session() {
        let ends: [fn(&ReplyTable); 4] = [
            |reply_table| reply_table.lose(&Error::NoCommunicator),
            |reply_table| reply_table.close(),
            |reply_table| reply_table.left(WorkerRange::new(0..1)),
            |reply_table| reply_table.reply(WorkerId::new(0), 1, Ok(Value::None)),
        ];
        for end in ends {
            let reply_table = Arc::new(ReplyTable::default());
            let (tell, told) = mpsc::channel();
            let waker = Waker::from(Arc::new(Inline(reply_table.clone(), Mutex::new(tell))));
            let other = reply_table.clone();
            thread::spawn(move || {
                let expected = reply_table.expect("get", 1, WorkerRange::new(0..1));
                assert!(expected.pending.poll_take(&mut Context::from_waker(&waker)).is_pending());
                end(&other);
            });
            told.recv_timeout(Duration::from_secs(10)).expect("the waker waits for a lock that its caller holds");
        }
    }
}
