//! Replaces lost workers by new ones in the same places.
//!
//! ```text
//! caller of replace_lost                      thread `disco-replace`
//! takes the lost workers from the table  ──▶  asks their lanes for lanes to new workers, and starts these
//! gives the session the new lanes        ◀──  the new lanes, or the first error
//! begins an epoch: `Recover`, then the lookups of all functions, then the session takes commands again
//! ```
//!
//! Workers that are lost meanwhile, including new workers, are replaced in the next round.

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
use super::order::Order;
use super::reply_table::{LaneInbox, Losses, ReplyTable};
use crate::channel::{Channel, Signal};
use crate::command::Command;
use crate::error::{Error, Result};
use crate::id::WorkerId;
use crate::members::Members;
use crate::metrics;
use crate::sync;
use crate::value::Value;
use crate::worker_range::WorkerRange;

/// Time limit for the shutdown of workers that the session does not use.
pub(super) const END_LIMIT: Duration = Duration::from_secs(3);

/// When the session replaces lost workers, and how often. Default: [`when_asked`](Self::when_asked), without a limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReplacementPolicy {
    when: When,
    /// The largest number of workers that are replaced within a time of this length.
    limit: Option<(u32, Duration)>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum When {
    Never,
    Asked,
    Recovered,
}

/// The result of [`Session::replace_lost`](super::Session::replace_lost).
#[non_exhaustive]
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Replaced {
    /// The workers that are new since the last call that succeeded, in order. Empty if no worker was lost.
    pub workers: Vec<WorkerId>,
    /// For each worker before, in order, its number now. All have the same number, unless a call of
    /// [`resize`](super::Session::resize) has failed or was dropped after it had changed the numbers.
    pub numbers: Vec<Option<WorkerId>>,
    /// Number of the session's epoch: a new one if a worker was lost.
    pub epoch: u64,
}

/// The replacements of one session.
#[derive(Default)]
pub(super) struct Replacing {
    policy: ReplacementPolicy,
    /// Whether workers are being replaced, or started for a caller that has dropped its future.
    is_busy: Mutex<bool>,
    /// Notified when `is_busy` becomes false.
    is_free: Event,
    /// Times of replacements within the time of the policy's limit.
    history: Mutex<VecDeque<Instant>>,
    /// Returns the registers of a new worker, with their values.
    restore: Mutex<Option<Restore>>,
    /// Places of new workers whose registers are not restored.
    to_restore: Mutex<BTreeSet<WorkerId>>,
    /// Places of new workers that no call has returned yet.
    pub(super) unreported: Mutex<BTreeSet<WorkerId>>,
    /// The workers that the last call has returned; `None` before the first one.
    pub(super) reported: Mutex<Option<Members>>,
    /// The workers have changed since the start, so that new ones have to be told their numbers.
    pub(super) is_resized: AtomicBool,
    /// Lanes that start.
    starting: Mutex<Vec<Arc<dyn Channel>>>,
    /// The session ends: no lane starts any more.
    is_over: AtomicBool,
    /// Threads that start lanes, or close lanes that the session no longer uses.
    threads: Mutex<Vec<JoinHandle<()>>>,
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

impl NewLane {
    /// The lane, which owns its places from now on, and its inbox.
    pub(super) fn take(mut self, table: &ReplyTable) -> (Arc<dyn Channel>, Arc<LaneInbox>) {
        table.take_over(&self.inbox, self.lane.workers());
        self.is_taken = true;
        (self.lane.clone(), self.inbox.clone())
    }
}

type Restore = Arc<dyn Fn(WorkerId) -> Vec<(DRef, Value)> + Send + Sync>;

impl ReplacementPolicy {
    /// Workers are never replaced: [`Session::replace_lost`](super::Session::replace_lost) is an error.
    pub const fn never() -> Self {
        Self { when: When::Never, limit: None }
    }

    /// Workers are replaced by [`Session::replace_lost`](super::Session::replace_lost) only.
    pub const fn when_asked() -> Self {
        Self { when: When::Asked, limit: None }
    }

    /// Workers are replaced by [`Session::recover`](super::Session::recover), too, and so by
    /// [`DataPlane::init_ccl`](super::DataPlane::init_ccl), which calls it.
    pub const fn when_recovered() -> Self {
        Self { when: When::Recovered, limit: None }
    }

    /// At most `workers` workers are replaced within any time of length `within`. Beyond that, replacement is an error.
    pub const fn at_most(self, workers: u32, within: Duration) -> Self {
        Self { limit: Some((workers, within)), ..self }
    }
}

impl Default for ReplacementPolicy {
    fn default() -> Self {
        Self::when_asked()
    }
}

impl LaneSession {
    /// Sets when lost workers are replaced, and how often.
    #[must_use]
    pub fn with_replacement(mut self, policy: ReplacementPolicy) -> Self {
        self.replacing = Arc::new(Replacing { policy, ..Replacing::default() });
        self
    }

    /// Sets the function that restores new workers. [`Session::replace_lost`](super::Session::replace_lost) calls
    /// `restore` for each new worker and [sets](super::Session::set) the returned values in the worker's registers, before
    /// the session takes other commands; so does [`Session::resize`](super::Session::resize) for each worker that it adds. A
    /// later call replaces the function. A function that owns the session keeps it
    /// alive.
    pub fn on_replaced(&self, restore: impl Fn(WorkerId) -> Vec<(DRef, Value)> + Send + Sync + 'static) {
        *sync::lock(&self.replacing.restore) = Some(Arc::new(restore));
    }

    /// Whether [`Session::recover`](super::Session::recover) has to replace workers.
    pub(super) fn replaces_on_recovery(&self) -> bool {
        self.replacing.policy.when == When::Recovered && self.reply_table.check_lost().is_err()
    }

    /// Implements [`Session::replace_lost`](super::Session::replace_lost).
    pub(super) async fn replace_and_report(&self) -> Result<Replaced> {
        let epoch = self.replace().await?;
        let (numbers, workers) = self.take_unreported();
        Ok(Replaced { workers, numbers, epoch })
    }

    /// Replaces lost workers. Returns the number of the epoch.
    pub(super) async fn replace(&self) -> Result<u64> {
        let busy = Busy::begin(&self.replacing).await;
        loop {
            let lost = match self.losses("replace_lost").await? {
                Losses::None => return Ok(self.reply_table.epoch()),
                Losses::Workers(lost) => lost,
            };
            let mut taken = Taken { table: &self.reply_table, lost };
            if !taken.lost.is_empty() {
                let (lanes, lost) = (self.lanes(), taken.lost.clone());
                let list = list(&lanes.members, &lost);
                self.replacing.admit(&list, lost.len())?;
                let new = self.start_new("replace_lost", move || replacements(&lanes, &lost), &busy).await?;
                self.install(new)?;
                tracing::info!("{list} replaced");
                self.replacing.note(std::mem::take(&mut taken.lost));
            }
            if let Some(epoch) = self.begin_epoch("replace_lost").await? {
                return Ok(epoch);
            }
        }
    }

    /// Takes the lost workers out of the table. Waits for the loss reports of lanes that have refused a frame.
    pub(super) async fn losses(&self, operation: &str) -> Result<Losses> {
        let (ticks, start) = (self.ticker.start(), Instant::now());
        loop {
            let (changed, tick) = (self.reply_table.has_capacity.listen(), ticks.next());
            self.check(operation, ReplyTable::check_nothing)?;
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

    /// Starts the lanes that `make` returns, on a thread of its own, since that blocks. If the future is dropped, the thread
    /// ends their workers, and other callers wait for that.
    pub(super) async fn start_new(
        &self,
        operation: &'static str,
        make: impl FnOnce() -> Result<Vec<Arc<dyn Channel>>> + Send + 'static,
        busy: &Arc<Busy>,
    ) -> Result<Vec<NewLane>> {
        let (table, busy) = (self.reply_table.clone(), busy.clone());
        let (sender, receiver) = oneshot::channel();
        self.replacing.spawn("disco-replace", move || {
            let run = AssertUnwindSafe(|| start(&busy.0, operation, make()?, &table));
            let panicked = |_: Box<dyn Any + Send>| Err(panicked());
            let result = panic::catch_unwind(run).unwrap_or_else(panicked);
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
            let new = new.into_iter().map(|new| new.take(&self.reply_table).0);
            let before = self.lanes();
            let (lanes, unused) = before.with(new, before.members.clone());
            self.set_lanes(&mut order, lanes);
            unused
        };
        self.close_unused(removed);
        Ok(())
    }

    /// Ends the workers of lanes that the session does not use any more, on a thread of its own.
    pub(super) fn close_unused(&self, lanes: Vec<Arc<dyn Channel>>) {
        if lanes.is_empty() {
            return;
        }
        let closed = self.replacing.spawn("disco-close", move || lanes.iter().for_each(close));
        // Dropping the lanes ends their workers, too.
        if let Err(error) = closed {
            tracing::warn!(%error, "lanes that are not used are not waited for");
        }
    }

    /// Starts the next epoch on all workers, and ends the loss. Returns `None` if more workers were lost meanwhile.
    pub(super) async fn begin_epoch(&self, operation: &str) -> Result<Option<u64>> {
        let begun = async {
            let epoch = self.start_epoch(operation).await?;
            self.restore().await.map(|()| epoch)
        };
        let begun = begun.await;
        if self.reply_table.check_replaced().is_err() {
            return Ok(None);
        }
        let epoch = begun?;
        self.is_hung.store(false, Ordering::Relaxed);
        Ok(self.reply_table.revive().then_some(epoch))
    }

    /// Sends the first commands of the next epoch. No other caller sends commands, since the session is lost.
    async fn start_epoch(&self, operation: &str) -> Result<u64> {
        let live = ReplyTable::check_replaced;
        let recover = |order: &mut Order| {
            let epoch = self.reply_table.begin_next_epoch();
            let command = self.first_command(epoch, &order.lanes);
            self.send(order, Values::SMALL, |_| Ok(command)).map(|()| epoch)
        };
        let epoch = self.turn(operation, live, recover).await?;
        // New workers have no functions.
        let functions: Vec<_> = self.functions().all().collect();
        for (name, register) in functions {
            let look_up = Command::GetGlobalFunc { register, name };
            self.turn(operation, live, |order| self.send(order, Values::SMALL, |_| Ok(look_up))).await?;
        }
        Ok(epoch)
    }

    /// Sets the registers of new workers to the program's values.
    async fn restore(&self) -> Result<()> {
        loop {
            let restore = sync::lock(&self.replacing.restore).clone();
            let Some(place) = sync::lock(&self.replacing.to_restore).first().copied() else { return Ok(()) };
            // Workers that have left meanwhile were removed.
            let worker = self.lanes().members.worker(place).unwrap_or(place);
            for (handle, value) in restore.map(|restore| restore(worker)).unwrap_or_default() {
                self.set_while(ReplyTable::check_replaced, &handle, worker, value).await?;
            }
            sync::lock(&self.replacing.to_restore).remove(&place);
        }
    }
}

/// Losses that were taken out of the table. They are put back on drop.
pub(super) struct Taken<'a> {
    pub(super) table: &'a ReplyTable,
    /// Their places.
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
    fn admit(&self, list: &str, lost: usize) -> Result<()> {
        if self.policy.when == When::Never {
            return Err(Error::state(format!(
                "replace_lost: {list}: the session never replaces workers (`ReplacementPolicy`)"
            )));
        }
        let Some((most, within)) = self.policy.limit else { return Ok(()) };
        let mut history = sync::lock(&self.history);
        history.retain(|at| at.elapsed() < within);
        if history.len() + lost <= most as usize {
            return Ok(());
        }
        let before = history.len();
        Err(Error::state(format!(
            "replace_lost: {list}: {before} workers were replaced within {within:?}, and the limit is {most} \
             (`ReplacementPolicy::at_most`)"
        )))
    }

    /// Records that the workers with these places were replaced.
    fn note(&self, new: BTreeSet<WorkerId>) {
        metrics::replaced(new.len());
        if self.policy.limit.is_some() {
            sync::lock(&self.history).extend(std::iter::repeat_n(Instant::now(), new.len()));
        }
        sync::lock(&self.to_restore).extend(&new);
        sync::lock(&self.unreported).extend(new);
    }

    /// Records that workers are gone, and that others are new.
    pub(super) fn note_resized(&self, gone: &[WorkerId], new: WorkerRange) {
        self.is_resized.store(true, Ordering::Release);
        for places in [&self.to_restore, &self.unreported] {
            let mut places = sync::lock(places);
            gone.iter().for_each(|place| _ = places.remove(place));
            places.extend(new);
        }
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

    /// Whether the session ends.
    pub(super) fn is_over(&self) -> bool {
        self.is_over.load(Ordering::SeqCst)
    }

    /// Ends the start of new workers, and waits for the threads. The session takes no commands any more.
    pub(super) fn finish(&self) {
        self.is_over.store(true, Ordering::SeqCst);
        // A lane that starts gives up.
        let starting = sync::lock(&self.starting).clone();
        starting.iter().for_each(|lane| _ = lane.close(Duration::ZERO));
        let threads = std::mem::take(&mut *sync::lock(&self.threads));
        threads.into_iter().for_each(|thread| _ = thread.join());
    }
}

/// A caller that replaces workers, or its thread that starts them.
pub(super) struct Busy(Arc<Replacing>);

impl Busy {
    /// Waits until nobody replaces workers.
    pub(super) async fn begin(replacing: &Arc<Replacing>) -> Arc<Self> {
        loop {
            let free = replacing.is_free.listen();
            if !std::mem::replace(&mut *sync::lock(&replacing.is_busy), true) {
                return Arc::new(Self(replacing.clone()));
            }
            free.await;
        }
    }
}

impl Drop for Busy {
    fn drop(&mut self) {
        *sync::lock(&self.0.is_busy) = false;
        self.0.is_free.notify(usize::MAX);
    }
}

/// Lanes to new workers in the places of `lost`: one lane for neighbours that had one.
fn replacements(lanes: &Lanes, lost: &BTreeSet<WorkerId>) -> Result<Vec<Arc<dyn Channel>>> {
    let have_one_owner = |one, other| Arc::ptr_eq(lanes.owner(one), lanes.owner(other));
    let parts = WorkerRange::cover(lost.iter().copied(), have_one_owner);
    parts.iter().map(|part| lanes.owner(part.first()).replacement(*part)).collect()
}

/// Starts lanes at the same time.
fn start(
    replacing: &Replacing,
    operation: &str,
    lanes: Vec<Arc<dyn Channel>>,
    table: &Arc<ReplyTable>,
) -> Result<Vec<NewLane>> {
    let make = |lane| NewLane { lane, inbox: LaneInbox::new(table), is_taken: false };
    let new: Vec<NewLane> = lanes.into_iter().map(make).collect();
    *sync::lock(&replacing.starting) = new.iter().map(|new| new.lane.clone()).collect();
    let start = |NewLane { lane, inbox, .. }: &NewLane| match replacing.is_over.load(Ordering::SeqCst) {
        true => Err(Error::Closed(operation.to_owned())),
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
pub(super) fn end(lanes: &[NewLane]) {
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

/// The workers with these places as text.
fn list(members: &Members, places: &BTreeSet<WorkerId>) -> String {
    WorkerRange::list(&places.iter().filter_map(|place| members.worker(*place)).collect::<Vec<_>>())
}
