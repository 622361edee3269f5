//! Replaces lost workers by new ones in the same places.
//!
//! ```text
//! caller of replace_lost                      thread `disco-replace`
//! takes the lost workers from the table  ──▶  asks their lanes for lanes to new workers, and starts these
//! gives the session the new lanes        ◀──  the new lanes, or the first error
//! begins an epoch: `Recover`, then the lookups of all functions, then the session takes commands again
//! ```
//!
//! Workers that are lost meanwhile, also new ones, are replaced in the next round.

use std::any::Any;
use std::collections::{BTreeSet, VecDeque};
use std::panic::{self, AssertUnwindSafe};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use event_listener::Event;
use futures_lite::future;

use super::lanes::{LaneSession, Lanes, owned, owner};
use super::large::Values;
use super::reply_table::{LaneInbox, Losses, ReplyTable};
use super::{DRef, Session as _};
use crate::channel::{Channel, Signal};
use crate::command::Command;
use crate::error::{Error, Result};
use crate::id::WorkerId;
use crate::metrics;
use crate::sync;
use crate::value::Value;
use crate::worker_range::WorkerRange;

/// Time for the losses of a lane's workers to be reported after the lane has taken no frame.
const REPORT_LIMIT: Duration = Duration::from_secs(6);

/// Time for new workers to end that the session does not get.
const END_LIMIT: Duration = Duration::from_secs(3);

/// When the session replaces lost workers, and how often. Default: [`when_asked`](Self::when_asked), without a limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Replacement {
    when: When,
    most: Option<(u32, Duration)>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum When {
    Never,
    Asked,
    Recovered,
}

/// What [`Session::replace_lost`](super::Session::replace_lost) has done.
#[non_exhaustive]
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Replaced {
    /// The workers that are new since the last call that succeeded, in order. Empty if no worker was lost.
    pub workers: Vec<WorkerId>,
    /// The epoch that has begun; that of the session if no worker was lost.
    pub epoch: u64,
}

/// The replacements of one session.
#[derive(Default)]
pub(super) struct Replacing {
    policy: Replacement,
    /// Whether a caller replaces workers now.
    is_busy: Mutex<bool>,
    /// Notified when `is_busy` becomes false.
    is_free: Event,
    /// When workers were replaced, as far as the limit needs it.
    history: Mutex<VecDeque<Instant>>,
    /// What a new worker gets.
    restore: Mutex<Option<Restore>>,
    /// New workers that have not got it.
    to_restore: Mutex<BTreeSet<WorkerId>>,
    /// New workers of which no caller knows.
    unreported: Mutex<BTreeSet<WorkerId>>,
}

type Restore = Arc<dyn Fn(WorkerId) -> Vec<(DRef, Value)> + Send + Sync>;

impl Replacement {
    /// Workers are never replaced: [`Session::replace_lost`](super::Session::replace_lost) is an error.
    pub const fn never() -> Self {
        Self { when: When::Never, most: None }
    }

    /// Workers are replaced by [`Session::replace_lost`](super::Session::replace_lost) only.
    pub const fn when_asked() -> Self {
        Self { when: When::Asked, most: None }
    }

    /// Workers are replaced by [`Session::recover`](super::Session::recover), too, and so by
    /// [`DataPlane::init_ccl`](super::DataPlane::init_ccl), which calls it.
    pub const fn when_recovered() -> Self {
        Self { when: When::Recovered, most: None }
    }

    /// At most `workers` workers are replaced within any time of length `within`. Beyond that, replacement is an error.
    pub const fn at_most(self, workers: u32, within: Duration) -> Self {
        Self { most: Some((workers, within)), ..self }
    }
}

impl Default for Replacement {
    fn default() -> Self {
        Self::when_asked()
    }
}

impl LaneSession {
    /// Sets when lost workers are replaced, and how often.
    #[must_use]
    pub fn with_replacement(mut self, policy: Replacement) -> Self {
        self.replacing.policy = policy;
        self
    }

    /// Sets what each worker gets that [`Session::replace_lost`](super::Session::replace_lost) has started: the values
    /// that `restore` returns for it are [set](super::Session::set) in these registers. Replaces an earlier function.
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
        let workers = std::mem::take(&mut *sync::lock(&self.replacing.unreported));
        Ok(Replaced { workers: workers.into_iter().collect(), epoch })
    }

    /// Replaces lost workers. Returns the number of the epoch.
    pub(super) async fn replace(&self) -> Result<u64> {
        let _busy = self.replacing.begin().await;
        let epoch = loop {
            self.check("replace_lost", ReplyTable::check_nothing)?;
            let lost = match self.losses().await? {
                Losses::None => break self.reply_table.epoch(),
                Losses::Workers(lost) => lost,
            };
            let mut taken = Taken { table: &self.reply_table, lost };
            self.replacing.admit(&taken.lost)?;
            let lanes = self.start_replacements(&taken.lost).await?;
            self.install(lanes)?;
            let new: Vec<WorkerId> = std::mem::take(&mut taken.lost).into_iter().flatten().collect();
            tracing::info!("{} replaced", WorkerRange::list(&new));
            metrics::replaced(new.len());
            sync::lock(&self.replacing.to_restore).extend(&new);
            sync::lock(&self.replacing.unreported).extend(new);
            if let Some(epoch) = self.begin_epoch().await? {
                break epoch;
            }
        };
        self.restore().await?;
        Ok(epoch)
    }

    /// The workers to replace, which the caller takes out of the table. Waits until the losses are reported that made a
    /// lane fail.
    async fn losses(&self) -> Result<Losses> {
        let (ticks, start) = (self.ticker.start(), Instant::now());
        loop {
            let (changed, tick) = (self.reply_table.has_capacity.listen(), ticks.next());
            match self.reply_table.take_losses() {
                Err(error) if start.elapsed() >= REPORT_LIMIT => return Err(error),
                Err(_) => future::or(changed, tick).await,
                Ok(losses) => return Ok(losses),
            }
        }
    }

    /// Starts new workers on a thread of its own, since that blocks.
    async fn start_replacements(&self, lost: &[WorkerRange]) -> Result<Vec<Arc<dyn Channel>>> {
        let (lanes, lost, inbox) = (self.lanes(), lost.to_vec(), self.reply_table.clone());
        let finished = Arc::new((Mutex::new(None), Event::new()));
        let tell = finished.clone();
        let run = move || {
            let started = panic::catch_unwind(AssertUnwindSafe(|| start(&lanes, &lost, &inbox)));
            let panicked = |_: Box<dyn Any + Send>| Err(Error::state("the start of a lane panicked"));
            let started = started.unwrap_or_else(panicked);
            // The caller may have dropped its future.
            if let (Ok(lanes), 1) = (&started, Arc::strong_count(&tell)) {
                end(lanes);
            }
            *sync::lock(&tell.0) = Some(started);
            tell.1.notify(usize::MAX);
        };
        let thread = thread::Builder::new().name("disco-replace".into()).spawn(run);
        thread.map_err(|error| Error::system("no thread to replace workers", error))?;
        loop {
            let done = finished.1.listen();
            if let Some(started) = sync::lock(&finished.0).take() {
                return started;
            }
            done.await;
        }
    }

    /// Adds `new` lanes, and removes those without a worker of their own.
    fn install(&self, new: Vec<Arc<dyn Channel>>) -> Result<()> {
        let removed = {
            let mut order = self.order();
            if self.closed.load(Ordering::Acquire) {
                return Err(Error::Closed("replace_lost".to_owned()));
            }
            let all: Lanes = self.lanes().iter().cloned().chain(new).collect();
            let is_used = |lane: &Arc<dyn Channel>| owned(&all, lane).next().is_some();
            let (used, unused): (Vec<_>, Vec<_>) = all.iter().cloned().partition(is_used);
            self.set_lanes(&mut order, used.into());
            unused
        };
        // Their workers have ended, so this returns at once.
        removed.iter().for_each(|lane| _ = lane.close(Duration::ZERO));
        Ok(())
    }

    /// Starts the next epoch on all workers. Returns `None` if more workers were lost meanwhile.
    async fn begin_epoch(&self) -> Result<Option<u64>> {
        let begun = self.start_epoch().await;
        if self.reply_table.check_replaced().is_err() {
            return Ok(None);
        }
        let epoch = begun?;
        self.is_hung.store(false, Ordering::Relaxed);
        Ok(self.reply_table.revive().then_some(epoch))
    }

    /// Sends the first commands of the next epoch. Nobody else sends commands, since the session is lost.
    async fn start_epoch(&self) -> Result<u64> {
        let live = ReplyTable::check_replaced;
        let recover = |order: &mut _| {
            let epoch = self.reply_table.begin_next_epoch();
            self.send(order, Values::SMALL, |_| Ok(Command::Recover { epoch })).map(|()| epoch)
        };
        let epoch = self.turn("replace_lost", live, recover).await?;
        // New workers have no functions.
        let functions: Vec<_> =
            self.functions().iter().map(|(name, known)| (name.as_str().into(), known.register())).collect();
        for (name, register) in functions {
            let look_up = Command::GetGlobalFunc { register, name };
            self.turn("replace_lost", live, |order| self.send(order, Values::SMALL, |_| Ok(look_up))).await?;
        }
        Ok(epoch)
    }

    /// Gives the new workers what the program has for them.
    async fn restore(&self) -> Result<()> {
        loop {
            let restore = sync::lock(&self.replacing.restore).clone();
            let Some(worker) = sync::lock(&self.replacing.to_restore).first().copied() else { return Ok(()) };
            for (handle, value) in restore.map(|restore| restore(worker)).unwrap_or_default() {
                self.set(&handle, worker, value).await?;
            }
            sync::lock(&self.replacing.to_restore).remove(&worker);
        }
    }
}

/// Losses that were taken out of the table. They are put back on drop.
struct Taken<'a> {
    table: &'a ReplyTable,
    lost: Vec<WorkerRange>,
}

impl Drop for Taken<'_> {
    fn drop(&mut self) {
        self.table.put_back(std::mem::take(&mut self.lost));
    }
}

impl Replacing {
    /// Waits until no other caller replaces workers.
    async fn begin(&self) -> Busy<'_> {
        loop {
            let free = self.is_free.listen();
            if !std::mem::replace(&mut *sync::lock(&self.is_busy), true) {
                return Busy(self);
            }
            free.await;
        }
    }

    /// Checks the policy, and counts the workers.
    ///
    /// # Errors
    /// The policy forbids it.
    fn admit(&self, lost: &[WorkerRange]) -> Result<()> {
        let list = lost.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ");
        if self.policy.when == When::Never {
            return Err(Error::state(format!(
                "replace_lost: {list}: the session never replaces workers (`Replacement`)"
            )));
        }
        let Some((most, within)) = self.policy.most else { return Ok(()) };
        let mut history = sync::lock(&self.history);
        history.retain(|at| at.elapsed() < within);
        let count: usize = lost.iter().map(WorkerRange::len).sum();
        if history.len() + count > most as usize {
            let before = history.len();
            return Err(Error::state(format!(
                "replace_lost: {list}: {before} workers were replaced within {within:?}, and the limit is {most} \
                 (`Replacement::at_most`)"
            )));
        }
        history.extend(std::iter::repeat_n(Instant::now(), count));
        Ok(())
    }
}

/// Ends a replacement on drop.
struct Busy<'a>(&'a Replacing);

impl Drop for Busy<'_> {
    fn drop(&mut self) {
        *sync::lock(&self.0.is_busy) = false;
        self.0.is_free.notify(usize::MAX);
    }
}

/// Ends new workers that the session does not get, so that no place has two when they are started again.
fn end(lanes: &[Arc<dyn Channel>]) {
    for lane in lanes {
        // Fails if the lane was not started.
        _ = lane.signal(Signal::Shutdown);
        if let Err(error) = lane.close(END_LIMIT) {
            tracing::warn!(%error, ?lane, "new workers that are not needed do not end");
        }
    }
}

fn has_one_owner(lanes: &Lanes, some: WorkerRange, others: WorkerRange) -> bool {
    Arc::ptr_eq(owner(lanes, some.first()), owner(lanes, others.first()))
}

/// Starts lanes to new workers in the places of `lost`, which are in order, at the same time: one lane for neighbours that
/// had one.
fn start(lanes: &Lanes, lost: &[WorkerRange], inbox: &Arc<ReplyTable>) -> Result<Vec<Arc<dyn Channel>>> {
    let mut ranges: Vec<WorkerRange> = Vec::new();
    for workers in lost {
        match ranges.last_mut() {
            Some(last) if last.contains(workers.first()) => {}
            Some(last) if last.indices().end == workers.first().index() && has_one_owner(lanes, *last, *workers) => {
                *last = WorkerRange::new(last.indices().start as u32..workers.indices().end as u32);
            }
            _ => ranges.push(*workers),
        }
    }
    let new = ranges.iter().map(|workers| owner(lanes, workers.first()).replacement(*workers));
    let new: Vec<_> = new.collect::<Result<_>>()?;
    let start = |lane: &Arc<dyn Channel>| lane.start(Arc::new(LaneInbox::new(inbox, lane)));
    let started = thread::scope(|scope| {
        let starts: Vec<_> = new.iter().map(|lane| scope.spawn(move || start(lane))).collect();
        let panicked = |_: Box<dyn Any + Send>| Err(Error::state("the start of a lane panicked"));
        // All of them are waited for, also after the first error.
        let ends: Vec<_> = starts.into_iter().map(|started| started.join().unwrap_or_else(panicked)).collect();
        ends.into_iter().collect::<Result<()>>()
    });
    match started {
        Ok(()) => Ok(new),
        Err(error) => {
            end(&new);
            Err(error)
        }
    }
}
