//! Replaces lost workers by new ones in the same places.
//!
//! ```text
//! caller of replace_lost                      thread `disco-replace`
//! takes the lost workers from the table  ──▶  asks their lanes for lanes to new workers, and starts these
//! gives the session the new lanes        ◀──  the new lanes, or the first error
//! begins an epoch: `Recover`, then the lookups of all functions, then the session takes commands again
//! ```
//!
//! Workers that are lost meanwhile, including new workers, are replaced in the next round. With
//! [`ReplacementPolicy::at_once`], a thread of the session does the middle part ahead (`at_once.rs`).

use std::any::Any;
use std::collections::{BTreeSet, VecDeque};
use std::panic::{self, AssertUnwindSafe};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use event_listener::Event;
use futures_channel::oneshot;
use futures_lite::future;

use super::DRef;
use super::lane_set::Lanes;
use super::lanes::LaneSession;
use super::large::Values;
use super::replacement_policy::{ReplacementPolicy, When};
use super::reply_table::{LaneInbox, Losses, ReplyTable};
use crate::channel::{Channel, Signal};
use crate::command::Command;
use crate::error::{Error, Result};
use crate::id::WorkerId;
use crate::metrics;
use crate::sync;
use crate::value::Value;
use crate::worker_range::WorkerRange;

/// Time limit for the shutdown of workers that the session does not use.
const END_LIMIT: Duration = Duration::from_secs(3);

/// The result of [`Session::replace_lost`](super::Session::replace_lost).
#[non_exhaustive]
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Replaced {
    /// The workers that are new since the last call that succeeded, in order. Empty if no worker was lost.
    pub workers: Vec<WorkerId>,
    /// Number of the session's epoch: a new one if a worker was lost.
    pub epoch: u64,
}

/// The replacements of one session.
#[derive(Default)]
pub(super) struct Replacing {
    policy: ReplacementPolicy,
    /// Whether workers are being replaced, or started for a caller that has dropped its future.
    is_busy: Mutex<bool>,
    /// Notified when `is_busy` becomes false, and when the session ends.
    pub(super) is_free: Event,
    /// New workers that have started before a caller asks for them, in the order of their losses.
    pub(super) prepared: Mutex<Vec<Prepared>>,
    /// The last attempt to replace workers has failed: the next one is a caller's.
    pub(super) has_failed: AtomicBool,
    /// Times of replacements within the time of the policy's limit.
    history: Mutex<VecDeque<Instant>>,
    /// Returns the registers of a new worker, with their values.
    restore: Mutex<Option<Restore>>,
    /// New workers whose registers are not restored.
    to_restore: Mutex<BTreeSet<WorkerId>>,
    /// New workers that no call has returned yet.
    unreported: Mutex<BTreeSet<WorkerId>>,
    /// Lanes that start.
    starting: Mutex<Vec<Arc<dyn Channel>>>,
    /// The session ends: no lane starts any more.
    pub(super) is_over: AtomicBool,
    /// Threads that start lanes, or close lanes that the session no longer uses.
    threads: Mutex<Vec<JoinHandle<()>>>,
}

/// New workers that no caller has given their places yet.
pub(super) struct Prepared {
    /// The lost workers, which were taken out of the table.
    pub(super) lost: BTreeSet<WorkerId>,
    pub(super) lanes: Vec<NewLane>,
}

/// A lane to new workers. Unless the session takes it, its reports are ignored once it is dropped.
pub(super) struct NewLane {
    lane: Arc<dyn Channel>,
    inbox: Arc<LaneInbox>,
    is_taken: bool,
}

impl Drop for NewLane {
    fn drop(&mut self) {
        if !self.is_taken {
            self.inbox.give_up(self.lane.workers());
        }
    }
}

type Restore = Arc<dyn Fn(WorkerId) -> Vec<(DRef, Value)> + Send + Sync>;

impl LaneSession {
    /// Sets when lost workers are replaced, and how often.
    #[must_use]
    pub fn with_replacement(mut self, policy: ReplacementPolicy) -> Self {
        self.replacing.finish();
        self.replacing = Arc::new(Replacing { policy, ..Replacing::default() });
        if self.replaces_at_once() {
            self.prepare_in_background();
        }
        self
    }

    /// Sets the function that restores new workers. [`Session::replace_lost`](super::Session::replace_lost) calls
    /// `restore` for each new worker and [sets](super::Session::set) the returned values in the worker's registers, before
    /// the session takes other commands. A later call replaces the function. A function that owns the session keeps it
    /// alive.
    pub fn on_replaced(&self, restore: impl Fn(WorkerId) -> Vec<(DRef, Value)> + Send + Sync + 'static) {
        *sync::lock(&self.replacing.restore) = Some(Arc::new(restore));
    }

    /// Whether [`Session::recover`](super::Session::recover) has to replace workers.
    pub(super) fn replaces_on_recovery(&self) -> bool {
        self.replacing.policy.when == When::Recovered && self.reply_table.check_lost().is_err()
    }

    /// Whether workers are replaced before a program asks for it.
    pub(super) fn replaces_at_once(&self) -> bool {
        self.replacing.policy.when == When::AtOnce
    }

    /// Implements [`Session::replace_lost`](super::Session::replace_lost).
    pub(super) async fn replace_and_report(&self) -> Result<Replaced> {
        let Revived { epoch, .. } = self.replace().await?;
        let workers = std::mem::take(&mut *sync::lock(&self.replacing.unreported));
        Ok(Replaced { workers: workers.into_iter().collect(), epoch })
    }

    /// Replaces lost workers.
    pub(super) async fn replace(&self) -> Result<Revived> {
        let busy = self.begin_replacing().await?;
        let replaced = self.replace_all(&busy).await;
        self.replacing.has_failed.store(replaced.is_err(), Ordering::SeqCst);
        replaced
    }

    async fn replace_all(&self, busy: &Arc<Busy>) -> Result<Revived> {
        loop {
            let prepared = std::mem::take(&mut *sync::lock(&self.replacing.prepared));
            prepared.into_iter().try_for_each(|Prepared { lost, lanes }| {
                self.give_places(lanes, Taken { table: &self.reply_table, lost })
            })?;
            let lost = match self.losses().await? {
                Losses::None => return Ok(Revived { epoch: self.reply_table.epoch(), untold: None }),
                Losses::Workers(lost) => lost,
            };
            let taken = Taken { table: &self.reply_table, lost };
            if !taken.lost.is_empty() {
                self.replacing.admit(&taken.lost)?;
                let lanes = self.start_replacements(&taken.lost, busy).await?;
                self.replacing.count(&taken.lost);
                self.give_places(lanes, taken)?;
            }
            if let Some(revived) = self.begin_epoch().await? {
                return Ok(revived);
            }
        }
    }

    /// Waits until no other caller replaces workers.
    ///
    /// # Errors
    /// A caller has held its future, without a poll, for [`Deadlines::stall`](super::Deadlines::stall).
    async fn begin_replacing(&self) -> Result<Arc<Busy>> {
        let (ticks, start) = (self.ticker.start(), Instant::now());
        loop {
            let (free, tick) = (self.replacing.is_free.listen(), ticks.next());
            if let Some(busy) = Busy::try_begin(&self.replacing) {
                return Ok(busy);
            }
            if start.elapsed() >= self.limits.stall {
                return Err(Error::state(format!(
                    "replace_lost: another caller has been replacing workers for {:?}; is its future polled?",
                    self.limits.stall
                )));
            }
            future::or(free, tick).await;
        }
    }

    /// Gives new workers the places of the lost ones.
    fn give_places(&self, lanes: Vec<NewLane>, mut taken: Taken<'_>) -> Result<()> {
        self.install(lanes)?;
        self.replacing.note(std::mem::take(&mut taken.lost));
        Ok(())
    }

    /// Takes the lost workers out of the table. Waits for the loss reports of lanes that have refused a frame.
    async fn losses(&self) -> Result<Losses> {
        let (ticks, start) = (self.ticker.start(), Instant::now());
        loop {
            let (changed, tick) = (self.reply_table.has_capacity.listen(), ticks.next());
            self.check("replace_lost", ReplyTable::check_nothing)?;
            let taken = {
                let _order = self.order();
                self.reply_table.take_losses()
            };
            match taken {
                Err(error) if start.elapsed() >= self.limits.reply => return Err(error),
                Err(_) => future::or(changed, tick).await,
                Ok(losses) => return Ok(losses),
            }
        }
    }

    /// Starts new workers on a thread of its own, since that blocks. If the future is dropped, the thread ends them, and
    /// other callers wait for that.
    async fn start_replacements(&self, lost: &BTreeSet<WorkerId>, busy: &Arc<Busy>) -> Result<Vec<NewLane>> {
        let (lanes, lost, table, busy) = (self.lanes(), lost.clone(), self.reply_table.clone(), busy.clone());
        let (sender, receiver) = oneshot::channel();
        self.replacing.spawn("disco-replace", move || {
            let result = start(&busy.0, &lanes, &lost, &table);
            // The caller may have dropped its future.
            if let Err(Ok(unused)) = sender.send(result) {
                end(&unused);
            }
            drop(busy);
        })?;
        receiver.await.unwrap_or_else(|_| Err(panicked()))
    }

    /// Adds `new` lanes, and closes those that own no worker any more.
    fn install(&self, new: Vec<NewLane>) -> Result<()> {
        let removed: Vec<_> = {
            let mut order = self.order();
            if self.closed.load(Ordering::Acquire) {
                drop(order);
                end(&new);
                return Err(Error::Closed("replace_lost".to_owned()));
            }
            let mut new = new;
            for NewLane { lane, inbox, is_taken } in &mut new {
                self.reply_table.take_over(inbox, lane.workers());
                *is_taken = true;
            }
            let all: Lanes = self.lanes().iter().chain(new.iter().map(|new| &new.lane)).cloned().collect();
            let is_used = |lane: &Arc<dyn Channel>| lane.is_entrance() || all.owned(lane).next().is_some();
            let (used, unused): (Vec<_>, Vec<_>) = all.iter().cloned().partition(is_used);
            self.set_lanes(&mut order, used.into());
            unused
        };
        if removed.is_empty() {
            return Ok(());
        }
        let closed = self.replacing.spawn("disco-close", move || removed.iter().for_each(close));
        // Dropping the lanes ends their workers, too.
        closed.or_else(|error| {
            tracing::warn!(%error, "lanes that are not used are not waited for");
            Ok(())
        })
    }

    /// Starts the next epoch on all workers, and ends the loss. Returns `None` if more workers were lost meanwhile.
    async fn begin_epoch(&self) -> Result<Option<Revived>> {
        let begun = async {
            let epoch = self.start_epoch().await?;
            self.restore().await.map(|()| epoch)
        };
        let begun = begun.await;
        if self.reply_table.check_replaced().is_err() {
            return Ok(None);
        }
        let epoch = begun?;
        self.is_hung.store(false, Ordering::Relaxed);
        Ok(self.reply_table.revive().map(|untold| Revived { epoch, untold }))
    }

    /// Sends the first commands of the next epoch. No other caller sends commands, since the session is lost.
    async fn start_epoch(&self) -> Result<u64> {
        let live = ReplyTable::check_replaced;
        let recover = |order: &mut _| {
            let epoch = self.reply_table.begin_next_epoch();
            self.send(order, Values::SMALL, |_| Ok(Command::Recover { epoch })).map(|()| epoch)
        };
        let epoch = self.turn("replace_lost", live, recover).await?;
        // New workers have no functions.
        let functions: Vec<_> = self.functions().all().collect();
        for (name, register) in functions {
            let look_up = Command::GetGlobalFunc { register, name };
            self.turn("replace_lost", live, |order| self.send(order, Values::SMALL, |_| Ok(look_up))).await?;
        }
        Ok(epoch)
    }

    /// Sets the registers of new workers to the program's values.
    async fn restore(&self) -> Result<()> {
        loop {
            let restore = sync::lock(&self.replacing.restore).clone();
            let Some(worker) = sync::lock(&self.replacing.to_restore).first().copied() else { return Ok(()) };
            for (handle, value) in restore.map(|restore| restore(worker)).unwrap_or_default() {
                self.set_while(ReplyTable::check_replaced, &handle, worker, value).await?;
            }
            sync::lock(&self.replacing.to_restore).remove(&worker);
        }
    }
}

/// The session after the replacement of lost workers.
pub(super) struct Revived {
    /// The number of the epoch.
    pub(super) epoch: u64,
    /// The loss that no method has returned.
    pub(super) untold: Option<Error>,
}

/// Losses that were taken out of the table. They are put back on drop.
pub(super) struct Taken<'a> {
    pub(super) table: &'a ReplyTable,
    pub(super) lost: BTreeSet<WorkerId>,
}

impl Drop for Taken<'_> {
    fn drop(&mut self) {
        self.table.put_back(std::mem::take(&mut self.lost));
    }
}

impl Replacing {
    /// Checks the policy.
    ///
    /// # Errors
    /// The policy forbids it.
    pub(super) fn admit(&self, lost: &BTreeSet<WorkerId>) -> Result<()> {
        let list = list(lost);
        if self.policy.when == When::Never {
            return Err(Error::state(format!(
                "replace_lost: {list}: the session never replaces workers (`ReplacementPolicy`)"
            )));
        }
        let Some((most, within)) = self.policy.limit else { return Ok(()) };
        let mut history = sync::lock(&self.history);
        history.retain(|at| at.elapsed() < within);
        if history.len() + lost.len() <= most as usize {
            return Ok(());
        }
        let before = history.len();
        Err(Error::state(format!(
            "replace_lost: {list}: {before} workers were replaced within {within:?}, and the limit is {most} \
             (`ReplacementPolicy::at_most`)"
        )))
    }

    /// Counts new workers that have started, for the policy's limit.
    pub(super) fn count(&self, new: &BTreeSet<WorkerId>) {
        if self.policy.limit.is_some() {
            sync::lock(&self.history).extend(std::iter::repeat_n(Instant::now(), new.len()));
        }
    }

    /// Records that workers were replaced.
    fn note(&self, new: BTreeSet<WorkerId>) {
        tracing::info!("{} replaced", list(&new));
        metrics::replaced(new.len());
        sync::lock(&self.to_restore).extend(&new);
        sync::lock(&self.unreported).extend(new);
    }

    /// Runs `work`, which blocks, on a thread that the end of the session waits for.
    pub(super) fn spawn(&self, name: &str, work: impl FnOnce() + Send + 'static) -> Result<()> {
        let thread = thread::Builder::new().name(name.into()).spawn(work);
        let thread = thread.map_err(|error| Error::system("replace_lost: no thread", error))?;
        let mut threads = sync::lock(&self.threads);
        threads.retain(|thread| !thread.is_finished());
        threads.push(thread);
        Ok(())
    }

    /// Ends the start of new workers, and waits for the threads. The session takes no commands any more.
    pub(super) fn finish(&self) {
        self.is_over.store(true, Ordering::SeqCst);
        // A lane that starts gives up.
        let starting = sync::lock(&self.starting).clone();
        starting.iter().for_each(|lane| _ = lane.close(Duration::ZERO));
        self.is_free.notify(usize::MAX);
        let threads = std::mem::take(&mut *sync::lock(&self.threads));
        threads.into_iter().for_each(|thread| _ = thread.join());
        let prepared = std::mem::take(&mut *sync::lock(&self.prepared));
        prepared.iter().for_each(|prepared| end(&prepared.lanes));
    }
}

/// A caller that replaces workers, or a thread that starts them.
pub(super) struct Busy(Arc<Replacing>);

impl Busy {
    /// Returns none if another caller or thread is at it.
    pub(super) fn try_begin(replacing: &Arc<Replacing>) -> Option<Arc<Self>> {
        let was_busy = std::mem::replace(&mut *sync::lock(&replacing.is_busy), true);
        (!was_busy).then(|| Arc::new(Self(replacing.clone())))
    }
}

impl Drop for Busy {
    fn drop(&mut self) {
        *sync::lock(&self.0.is_busy) = false;
        self.0.is_free.notify(usize::MAX);
    }
}

/// Starts lanes to new workers in the places of `lost`, at the same time: one lane for neighbours that had one.
pub(super) fn start(
    replacing: &Replacing,
    lanes: &Lanes,
    lost: &BTreeSet<WorkerId>,
    table: &Arc<ReplyTable>,
) -> Result<Vec<NewLane>> {
    let run = AssertUnwindSafe(|| start_lanes(replacing, lanes, lost, table));
    panic::catch_unwind(run).unwrap_or_else(|_: Box<dyn Any + Send>| Err(panicked()))
}

fn start_lanes(
    replacing: &Replacing,
    lanes: &Lanes,
    lost: &BTreeSet<WorkerId>,
    table: &Arc<ReplyTable>,
) -> Result<Vec<NewLane>> {
    let have_one_owner = |one, other| Arc::ptr_eq(lanes.owner(one), lanes.owner(other));
    let parts = WorkerRange::cover(lost.iter().copied(), have_one_owner);
    let make = |part: &WorkerRange| {
        let lane = lanes.owner(part.first()).replacement(*part)?;
        Ok::<_, Error>(NewLane { lane, inbox: LaneInbox::new(table), is_taken: false })
    };
    let new: Vec<NewLane> = parts.iter().map(make).collect::<Result<_>>()?;
    *sync::lock(&replacing.starting) = new.iter().map(|new| new.lane.clone()).collect();
    let start = |NewLane { lane, inbox, .. }: &NewLane| match replacing.is_over.load(Ordering::SeqCst) {
        true => Err(Error::Closed("replace_lost".to_owned())),
        false => lane.start(inbox.clone()),
    };
    let started = thread::scope(|scope| {
        let starts: Vec<_> = new.iter().map(|new| scope.spawn(move || start(new))).collect();
        let panicked = |_: Box<dyn Any + Send>| Err(panicked());
        // Waits for all of them, also after the first error.
        let ends: Vec<_> = starts.into_iter().map(|started| started.join().unwrap_or_else(panicked)).collect();
        ends.into_iter().collect::<Result<()>>()
    });
    sync::lock(&replacing.starting).clear();
    match started {
        Ok(()) => Ok(new),
        Err(error) => {
            end(&new);
            Err(error)
        }
    }
}

fn panicked() -> Error {
    Error::state("replace_lost: the start of new workers panicked")
}

/// Ends new workers that the session does not use, so that no two workers have one place after the next start.
fn end(lanes: &[NewLane]) {
    for NewLane { lane, inbox, .. } in lanes {
        inbox.give_up(lane.workers());
        close(lane);
    }
}

/// Ends the workers of a lane that the session does not use.
fn close(lane: &Arc<dyn Channel>) {
    // Fails if the lane was not started.
    _ = lane.signal(Signal::Shutdown);
    if let Err(error) = lane.close(END_LIMIT) {
        tracing::warn!(%error, ?lane, "workers that are not used do not end");
    }
}

/// The workers as text.
fn list(workers: &BTreeSet<WorkerId>) -> String {
    WorkerRange::list(&workers.iter().copied().collect::<Vec<_>>())
}
