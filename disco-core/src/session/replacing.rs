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

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;

use futures_channel::oneshot;
use futures_lite::future;

use super::DRef;
use super::fleet::{Busy, Prepared};
use super::lane_session::LaneSession;
use super::large::Values;
use super::new_lanes::{NewLane, close, end, replacements};
use super::order::Order;
use super::reply_table::{Losses, ReplyTable};
use super::starting::{panicked, start};
use crate::channel::Channel;
use crate::command::Command;
use crate::error::{Error, Result};
use crate::id::WorkerId;
use crate::members::Members;
use crate::value::Value;
use crate::worker_range::WorkerRange;

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

impl LaneSession {
    /// Sets the function that restores new workers. [`Session::replace_lost`](super::Session::replace_lost) calls
    /// `restore` for each new worker and [sets](super::Session::set) the returned values in the worker's registers, before
    /// the session takes other commands; so does [`Session::resize`](super::Session::resize) for each worker that it adds. A
    /// later call replaces the function. A function that owns the session keeps it
    /// alive.
    pub fn on_replaced(&self, restore: impl Fn(WorkerId) -> Vec<(DRef, Value)> + Send + Sync + 'static) {
        self.fleet.set_restore(Arc::new(restore));
    }

    /// Whether [`Session::recover`](super::Session::recover) has to replace workers.
    pub(super) fn replaces_on_recovery(&self) -> bool {
        self.fleet.replaces_on_recovery() && self.stream.reply_table.check_lost().is_err()
    }

    /// Whether workers are replaced before a program asks for it.
    pub(super) fn replaces_at_once(&self) -> bool {
        self.fleet.replaces_at_once()
    }

    /// Implements [`Session::replace_lost`](super::Session::replace_lost).
    pub(super) async fn replace_and_report(&self) -> Result<Replaced> {
        let Revived { epoch, .. } = self.replace().await?;
        let (numbers, workers) = self.take_unreported();
        Ok(Replaced { workers, numbers, epoch })
    }

    /// Replaces lost workers.
    pub(super) async fn replace(&self) -> Result<Revived> {
        let busy = self.begin_replacing("replace_lost").await?;
        let replaced = self.replace_all(&busy).await;
        self.fleet.set_failed(replaced.is_err());
        replaced
    }

    async fn replace_all(&self, busy: &Arc<Busy>) -> Result<Revived> {
        loop {
            self.give_prepared()?;
            let lost = match self.losses("replace_lost").await? {
                Losses::None => return Ok(Revived { epoch: self.stream.reply_table.epoch(), untold: None }),
                Losses::Workers(lost) => lost,
            };
            let taken = Taken { table: &self.stream.reply_table, lost };
            if !taken.lost.is_empty() {
                let (lanes, lost) = (self.stream.lanes(), taken.lost.clone());
                self.fleet.admit(&list(&lanes.members, &lost), lost.len())?;
                let new = self.start_new("replace_lost", move || replacements(&lanes, &lost), busy).await?;
                self.fleet.count(taken.lost.len());
                self.give_places(new, taken)?;
            }
            if let Some(revived) = self.begin_epoch("replace_lost").await? {
                return Ok(revived);
            }
        }
    }

    /// Waits until no other caller replaces workers.
    ///
    /// # Errors
    /// A caller has held its future, without a poll, for [`Deadlines::stall`](super::Deadlines::stall).
    pub(super) async fn begin_replacing(&self, operation: &str) -> Result<Arc<Busy>> {
        let (ticks, start) = (self.stream.ticker.start(), Instant::now());
        loop {
            let (free, tick) = (self.fleet.is_free.listen(), ticks.next());
            if let Some(busy) = self.fleet.try_begin() {
                return Ok(busy);
            }
            if start.elapsed() >= self.stream.limits.stall {
                return Err(Error::state(format!(
                    "{operation}: another caller has been replacing workers for {:?}; is its future polled?",
                    self.stream.limits.stall
                )));
            }
            future::or(free, tick).await;
        }
    }

    /// Gives new workers the places of the lost ones.
    fn give_places(&self, lanes: Vec<NewLane>, mut taken: Taken<'_>) -> Result<()> {
        self.install(lanes)?;
        tracing::info!("{} replaced", list(&self.stream.lanes().members, &taken.lost));
        self.fleet.note_replaced(std::mem::take(&mut taken.lost));
        Ok(())
    }

    /// Gives the workers their places that have started before a caller asked for them.
    pub(super) fn give_prepared(&self) -> Result<()> {
        let prepared = self.fleet.take_prepared();
        prepared.into_iter().try_for_each(|Prepared { lost, lanes }| {
            self.give_places(lanes, Taken { table: &self.stream.reply_table, lost })
        })
    }

    /// Takes the lost workers out of the table. Waits for the loss reports of lanes that have refused a frame.
    pub(super) async fn losses(&self, operation: &str) -> Result<Losses> {
        let (ticks, start) = (self.stream.ticker.start(), Instant::now());
        loop {
            let (changed, tick) = (self.stream.reply_table.has_capacity.listen(), ticks.next());
            self.stream.check(operation, ReplyTable::check_nothing)?;
            let taken = {
                let _order = self.stream.order();
                self.stream.reply_table.take_losses()
            };
            match taken {
                Err(error) if start.elapsed() >= self.stream.limits.reply => return Err(error),
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
        let (table, busy) = (self.stream.reply_table.clone(), busy.clone());
        let (sender, receiver) = oneshot::channel();
        self.fleet.spawn("disco-replace", move || {
            let result = start(busy.fleet(), operation, make, &table);
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
            let mut order = self.stream.order();
            if self.stream.closed.load(Ordering::Acquire) {
                drop(order);
                end(&new);
                return Err(Error::Closed("replace_lost".to_owned()));
            }
            let new = new.into_iter().map(|new| new.take(&self.stream.reply_table).0);
            let (lanes, unused) = order.lanes.with(new, order.lanes.members.clone());
            self.stream.set_lanes(&mut order, lanes);
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
        let closed = self.fleet.spawn("disco-close", move || lanes.iter().for_each(close));
        // Dropping the lanes ends their workers, too.
        if let Err(error) = closed {
            tracing::warn!(%error, "lanes that are not used are not waited for");
        }
    }

    /// Starts the next epoch on all workers, and ends the loss. Returns `None` if more workers were lost meanwhile.
    pub(super) async fn begin_epoch(&self, operation: &str) -> Result<Option<Revived>> {
        let begun = async {
            let epoch = self.start_epoch(operation).await?;
            self.restore().await.map(|()| epoch)
        };
        let begun = begun.await;
        if self.stream.reply_table.check_replaced().is_err() {
            return Ok(None);
        }
        let epoch = begun?;
        self.stream.is_hung.store(false, Ordering::Relaxed);
        Ok(self.stream.reply_table.revive().map(|untold| Revived { epoch, untold }))
    }

    /// Sends the first commands of the next epoch. No other caller sends commands, since the session is lost.
    async fn start_epoch(&self, operation: &str) -> Result<u64> {
        let live = ReplyTable::check_replaced;
        let recover = |order: &mut Order| {
            let epoch = self.stream.reply_table.begin_next_epoch();
            let command = self.first_command(epoch, &order.lanes);
            self.stream.send(order, Values::SMALL, |_| Ok(command)).map(|()| epoch)
        };
        let epoch = self.stream.turn(operation, live, recover).await?;
        // New workers have no functions.
        let functions: Vec<_> = self.stream.order().functions.all().collect();
        for (name, register) in functions {
            let look_up = Command::GetGlobalFunc { register, name };
            self.stream.turn(operation, live, |order| self.stream.send(order, Values::SMALL, |_| Ok(look_up))).await?;
        }
        Ok(epoch)
    }

    /// Sets the registers of new workers to the program's values.
    async fn restore(&self) -> Result<()> {
        loop {
            let Some((place, restore)) = self.fleet.next_to_restore() else { return Ok(()) };
            // Workers that have left meanwhile were removed.
            let worker = self.stream.lanes().members.worker(place).unwrap_or(place);
            for (handle, value) in restore.map(|restore| restore(worker)).unwrap_or_default() {
                self.stream.set_while("set", ReplyTable::check_replaced, &handle, worker, value).await?;
            }
            self.fleet.note_restored(place);
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
    /// Their places.
    pub(super) lost: BTreeSet<WorkerId>,
}

impl Drop for Taken<'_> {
    fn drop(&mut self) {
        self.table.put_back(std::mem::take(&mut self.lost));
    }
}

/// The workers with these places as text.
pub(super) fn list(members: &Members, places: &BTreeSet<WorkerId>) -> String {
    WorkerRange::list(&places.iter().filter_map(|place| members.worker(*place)).collect::<Vec<_>>())
}
