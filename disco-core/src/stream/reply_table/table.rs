//! The session's inbox: awaited replies of workers, and the first failure.

use std::collections::VecDeque;
use std::process;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, Weak};
use std::time::Instant;

use event_listener::Event;

use super::cancellations::Cancellations;
use super::former::FormerWorkers;
use super::pending::Pending;
use super::streams::Streams;
use crate::channel::{Channel, Inbox, Notice, Reply, Signal};
use crate::error::{Error, Failure, Result};
use crate::id::WorkerId;
use crate::members::Members;
use crate::metrics;
use crate::status::Status;
use crate::stream::collecting::{Collection, is_of_collective};
use crate::stream::fleet::{Fleet, Lost};
use crate::stream::lane_set::Lanes;
use crate::sync;
use crate::value::Value;
use crate::worker_range::WorkerRange;

/// Pending replies, the first failure and the loss of one session. In memory in this order from the start of a cache line on, so
/// that a caller and a worker contend for one line only: that of the lock and the pending replies.
#[derive(Debug, Default)]
#[repr(C, align(64))]
pub(crate) struct ReplyTable {
    pub(super) state: Mutex<TableState>,
    /// Whether the session has failed or takes no commands; can be read without the lock.
    pub(super) failed: AtomicBool,
    /// Notified when a lane accepts frames again or the session failed.
    pub(crate) has_capacity: Event,
    /// Notified when workers are lost, when a caller or a thread has ended a change of them, and when the session ends.
    pub(crate) fleet_changed: Event,
    /// Number of the last command.
    commands: AtomicU64,
    /// Requests for recordings that have not ended.
    pub(super) collections: Mutex<Vec<Weak<Collection>>>,
    /// Calls whose results stream.
    pub(super) streams: Mutex<Streams>,
}

#[derive(Debug, Default)]
#[repr(C)]
pub(super) struct TableState {
    /// Commands that await replies, by number, in ascending order.
    pub(super) pending: VecDeque<(u64, Arc<Pending>)>,
    pub(super) epoch: u64,
    /// When the session began to start its workers.
    pub(super) begun: Option<Instant>,
    /// Weak, because lanes own the table.
    pub(super) lanes: Vec<Weak<dyn Channel>>,
    /// The former workers of all lanes.
    pub(super) former: Vec<Weak<FormerWorkers>>,
    /// The workers of the session. Lanes know them by their places.
    pub(super) members: Members,
    /// The root cause of this epoch.
    pub(super) failure: Option<Arc<Failure>>,
    /// Whether a method has returned the failure.
    pub(super) is_told: bool,
    /// Losses, and who replaces them.
    pub(super) fleet: Fleet,
    /// The records of the moment of the failure or loss.
    pub(super) evidence: Option<Arc<Collection>>,
    /// The failure or the loss ends with a table of records.
    pub(super) is_explained: bool,
    /// The first failure of each worker that has failed in this epoch, in the order of their arrival.
    failures: Vec<Arc<Failure>>,
    pub(super) cancellations: Cancellations,
}

impl TableState {
    /// The place of a command among the pending ones.
    fn find(&self, seq: u64) -> Result<usize, usize> {
        self.pending.binary_search_by_key(&seq, |(seq, _)| *seq)
    }

    /// Begins the next epoch, without what is kept of this one.
    pub(super) fn begin_epoch(&mut self) -> u64 {
        (self.failure, self.is_explained, self.is_told, self.evidence) = (None, false, false, None);
        self.failures.clear();
        self.cancellations.clear();
        self.epoch += 1;
        self.epoch
    }
}

/// A wait for replies. Dropping it removes the pending command from the table.
#[derive(Debug)]
pub(crate) struct Expected<'a> {
    reply_table: &'a ReplyTable,
    pub(in crate::stream) seq: u64,
    pub(in crate::stream) pending: Arc<Pending>,
}

impl ReplyTable {
    /// The lanes to `members` are about to start.
    pub(crate) fn begin(&self, members: Members) {
        let mut state = self.lock();
        state.begun = Some(Instant::now());
        state.fleet.begin(members);
    }

    /// Sets the lanes of the session, and its workers.
    pub(crate) fn set_lanes(&self, lanes: &Lanes) {
        let mut state = self.lock();
        state.lanes = lanes.iter().map(Arc::downgrade).collect();
        state.members = lanes.members.clone();
    }

    /// The workers of the session.
    pub(crate) fn members(&self) -> Members {
        self.lock().members.clone()
    }

    /// Records the number of a command that lanes are about to get.
    pub(in crate::stream) fn note_command(&self, number: u64) {
        self.commands.store(number, Ordering::Relaxed);
    }

    /// Registers command `seq` of `operation`, the next one of the session, which awaits a reply of each worker in `from`.
    pub(in crate::stream) fn expect(&self, operation: &'static str, seq: u64, from: WorkerRange) -> Expected<'_> {
        let mut state = self.lock();
        let end = state.fleet.loss().cloned();
        let members = (!state.members.is_plain()).then(|| state.members.clone());
        let pending = Arc::new(Pending::new(operation, members, from, end));
        if !pending.is_settled() {
            debug_assert!(state.pending.back().is_none_or(|(last, _)| *last < seq));
            state.pending.push_back((seq, pending.clone()));
        }
        Expected { reply_table: self, seq, pending }
    }

    /// Fails once a worker has failed or is lost.
    pub(crate) fn check(&self) -> Result<()> {
        if !self.failed.load(Ordering::Acquire) {
            return Ok(());
        }
        self.check_lost()?;
        self.root_cause().map_or(Ok(()), |failure| Err(Error::Worker(failure)))
    }

    /// Fails once a worker is lost.
    pub(crate) fn check_lost(&self) -> Result<()> {
        if !self.failed.load(Ordering::Acquire) {
            return Ok(());
        }
        let state = self.lock();
        state.fleet.check_thread()?;
        state.fleet.why().cloned().map_or(Ok(()), Err)
    }

    /// The failure that caused the other failures of this epoch.
    pub(in crate::stream) fn root_cause(&self) -> Option<Arc<Failure>> {
        self.lock().failure.clone()
    }

    /// The failures of this epoch that do not follow from an abort, in the order of the workers.
    pub(crate) fn failures(&self) -> Vec<Arc<Failure>> {
        let mut failures: Vec<_> = self.lock().failures.iter().filter(|failure| !failure.aborted).cloned().collect();
        failures.sort_by_key(|failure| failure.worker);
        failures
    }

    /// Starts the next epoch if this one has failed.
    pub(in crate::stream) fn next_epoch(&self) -> Option<u64> {
        let mut state = self.lock();
        state.failure.as_ref()?;
        let epoch = state.begin_epoch();
        self.failed.store(state.fleet.why().is_some(), Ordering::Release);
        Some(epoch)
    }

    /// Ends all waits because of a loss, and tells workers.
    pub(crate) fn lose(&self, lost: Lost, why: &Error) {
        let mut state = self.lock();
        let lost = match lost {
            Lost::Workers(mut places) => {
                // A resize may have dismissed them meanwhile.
                places.retain(|place| state.members.worker(*place).is_some());
                if places.is_empty() {
                    return;
                }
                Lost::Workers(places)
            }
            other => other,
        };
        let is_first = state.fleet.lose(lost, why);
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
        self.fleet_changed.notify(usize::MAX);
        // Last: wakers run code of the program's executor, which may use the session.
        pending.into_iter().for_each(|(_, pending)| pending.end(why.clone()));
        self.end_streams();
    }

    /// Ends all waits for replies, after the workers have left or were detached.
    pub(crate) fn close(&self) {
        let pending = std::mem::take(&mut self.lock().pending);
        pending.into_iter().for_each(|(_, pending)| pending.close());
        self.end_streams();
    }

    /// Sends an abort to all lanes and wakes commands that wait for a full lane.
    pub(super) fn abort(&self, epoch: u64, cause: Arc<str>) {
        for lane in self.lanes().iter() {
            if let Err(error) = lane.signal(Signal::Abort { epoch, cause: cause.clone() }) {
                tracing::debug!(%error, ?lane, "can't be told of the abort");
            }
        }
        self.has_capacity.notify(usize::MAX);
    }

    pub(super) fn lanes(&self) -> Lanes {
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

    /// Removes the commands that await a reply of a worker with one of these places.
    pub(super) fn take_unanswered(&self, places: WorkerRange) -> Vec<Arc<Pending>> {
        let mut state = self.lock();
        let all = std::mem::take(&mut state.pending);
        let (unanswered, others): (VecDeque<_>, _) = all.into_iter().partition(|(_, it)| it.is_missing(places));
        state.pending = others;
        unanswered.into_iter().map(|(_, pending)| pending).collect()
    }

    /// The former workers of the lanes that exist.
    pub(super) fn former(&self) -> Vec<Arc<FormerWorkers>> {
        let mut state = self.lock();
        state.former.retain(|former| former.strong_count() > 0);
        state.former.iter().filter_map(Weak::upgrade).collect()
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, TableState> {
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
            Notice::Cancelled { command, has_left, ops } => self.note_cancelled(from, command, has_left, ops),
            Notice::Result { command, number, value } => self.note_result(from, command, number, &value),
            Notice::ResultsEnd { command, count, outcome } => self.note_end_of_results(from, command, count, outcome),
            Notice::Failed { epoch, failure } => {
                tracing::debug!(%from, epoch, %failure, "failed");
                let mut state = self.lock();
                let Some(worker) = state.members.worker(from).filter(|_| epoch >= state.epoch) else { return };
                let failure = failure.of_worker(worker);
                state.failures.push(failure.clone());
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
        self.take_unanswered(places).iter().for_each(|pending| pending.close());
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
        self.lose(Lost::Workers(places.iter().collect()), &why);
        self.expect_no_records(places);
    }

    fn status(&self) -> Option<Status> {
        let (begun, members, failure) = {
            let state = self.lock();
            let failure = state.fleet.why().cloned().or_else(|| state.failure.clone().map(Error::Worker));
            (state.begun?, state.members.clone(), failure.map(|error| error.to_string()))
        };
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
