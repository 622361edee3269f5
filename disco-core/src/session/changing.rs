//! Changes of the workers: new ones in the places of lost workers, or another number of workers.
//!
//! ```text
//! caller of replace_lost or resize            thread `disco-replace`
//! takes the lost workers from the fleet  ──▶  makes lanes to new workers, and starts them
//! waits until a healthy session is drained
//! gives the session the new lanes        ◀──  the new lanes, or the first error
//! begins an epoch: its command, the lookups of all functions, restored registers; then the session takes commands again
//! ```
//!
//! Workers that are lost meanwhile, including new workers, are replaced or dropped in the next round, also if the start
//! has failed. With
//! [`ReplacementPolicy::at_once`](super::ReplacementPolicy::at_once), a thread of the session does the second step ahead
//! (`at_once.rs`).
//!
//! # Invariants
//! - Lost workers are replaced by a lane of their own behind the session's other lanes: the last lane that has a
//!   worker owns it. So the engines know nothing of replacement. A lane stays until it owns no worker. Each lane has
//!   an inbox of its own (`LaneInbox`), which passes on the end of a worker once, and only while the lane owns it.
//!   The session stays lost until the new workers have the first commands of the next epoch: `Recover`, the lookups
//!   of all functions, and what `on_replaced` sets. If a lane refuses a frame, the other lanes get it, so that
//!   survivors run the same commands; the session goes on only if all workers that the lane owns are lost. A loss and
//!   its workers are recorded at one moment, and taken for replacement under the order ticket.
//! - A node that is connected starts new processes in the places of its lost ones: they join the lane to new workers as
//!   a node of their own (`disco-channel`, `nodes/controller/hosting.rs`).
//! - A spare process has no place: a socket is its standard input, and over it the lane to new workers sends the
//!   invitation, which a process without a spare finds in its environment. From then on the two are alike. The thread
//!   `disco-spares` owns spares until they are taken, so none is given away twice.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread;
use std::time::{Duration, Instant};

use futures_channel::oneshot;
use futures_lite::future;

use super::DRef;
use super::helpers::{Busy, Ready, Started, no_thread, panicked};
use super::lane_session::LaneSession;
use super::new_lanes::{END_LIMIT, NewLane, end};
use super::plan::{Goal, Plan};
use crate::command::Command;
use crate::error::{Error, Result};
use crate::id::WorkerId;
use crate::members::Members;
use crate::metrics;
use crate::stream::asking::Drained;
use crate::stream::fleet::Fleet;
use crate::stream::lane_set::Lanes;
use crate::stream::large::Values;
use crate::stream::order::Order;
use crate::stream::reply_table::ReplyTable;
use crate::value::Value;
use crate::worker_range::WorkerRange;

/// Interval of looking whether workers have left.
const POLL_INTERVAL: Duration = Duration::from_millis(10);

/// The session after a change.
pub(super) struct Revived {
    /// The number of the epoch.
    pub(super) epoch: u64,
    /// The loss that no method has returned.
    pub(super) untold: Option<Error>,
}

impl LaneSession {
    /// Changes the workers until the goal is reached.
    pub(super) async fn change(&self, goal: Goal) -> Result<Revived> {
        let table = &self.stream.reply_table;
        if goal != Goal::Replace && table.fleet(Fleet::stop_ahead) {
            self.helpers.give_up_ahead();
        }
        let busy = self.begin(goal.operation()).await?;
        let changed = self.reach(goal, &busy).await;
        if goal == Goal::Replace || changed.is_ok() {
            table.fleet(|fleet| fleet.has_failed = changed.is_err());
        }
        changed
    }

    async fn reach(&self, goal: Goal, busy: &Arc<Busy>) -> Result<Revived> {
        let (table, operation) = (&self.stream.reply_table, goal.operation());
        loop {
            // They count as workers that are not lost.
            self.give_places()?;
            let lost = self.vacancies(operation).await?;
            let (is_lost, lost) = (lost.is_some(), lost.unwrap_or_default());
            let before = self.stream.lanes();
            let plan = match goal {
                Goal::Replace => Plan::replacement(&before.members, lost),
                Goal::Resize(size) => Plan::resize(&before, lost, size, self.per_node)?,
            };
            if !plan.is_empty() {
                self.check_plan(goal, &plan, &before)?;
                let new = match self.start_new(operation, &plan, before, busy).await {
                    // Others start them in place of a node that is lost.
                    Err(Error::Aborted { .. }) => continue,
                    Err(error) if table.check_replaced().is_err() => {
                        tracing::warn!(%error, "new workers did not start, and more workers are lost");
                        continue;
                    }
                    new => new?,
                };
                if goal == Goal::Replace {
                    self.helpers.count(plan.new.len());
                }
                let drained = if is_lost {
                    None
                } else {
                    match self.settle().await? {
                        Some(drained) => Some(drained),
                        None => {
                            // The next round may need their places.
                            if let Some(new) = new {
                                new.end().await;
                            }
                            continue;
                        }
                    }
                };
                self.install(operation, &plan, new.map(Started::take).unwrap_or_default())?;
                drop(drained);
            } else if !is_lost {
                return Ok(Revived { epoch: table.epoch(), untold: None });
            }
            if let Some(revived) = self.begin_epoch(operation).await? {
                return Ok(revived);
            }
        }
    }

    /// Waits until no other caller changes the workers.
    ///
    /// # Errors
    /// A caller has held its future, without a poll, for [`Deadlines::stall`](super::Deadlines::stall); or the caller is the
    /// program's function that restores a worker.
    async fn begin(&self, operation: &str) -> Result<Arc<Busy>> {
        let (table, stall) = (&self.stream.reply_table, self.stream.limits.stall);
        let (ticks, start) = (self.stream.ticker.start(), Instant::now());
        loop {
            let (changed, tick) = (table.fleet_changed.listen(), ticks.next());
            table.check_thread()?;
            if table.fleet(Fleet::begin_work) {
                return Ok(Arc::new(Busy::new(table)));
            }
            if start.elapsed() >= stall {
                return Err(Error::state(format!(
                    "{operation}: another caller has been replacing workers for {stall:?}; is its future polled?"
                )));
            }
            future::or(changed, tick).await;
        }
    }

    /// Gives the workers their places that have started before a caller asked for them.
    fn give_places(&self) -> Result<()> {
        self.helpers.take_ready().into_iter().try_for_each(|Ready { places, lanes }| {
            let plan = Plan::replacement(&self.stream.lanes().members, places);
            self.install(Goal::Replace.operation(), &plan, lanes)
        })
    }

    /// Takes the vacancies from the fleet; none if the session is not lost. Waits for the loss reports of lanes that have
    /// refused a frame.
    async fn vacancies(&self, operation: &str) -> Result<Option<BTreeSet<WorkerId>>> {
        let (ticks, start) = (self.stream.ticker.start(), Instant::now());
        loop {
            let (changed, tick) = (self.stream.reply_table.has_capacity.listen(), ticks.next());
            self.stream.check(operation, ReplyTable::check_thread)?;
            let taken = {
                let _order = self.stream.order();
                self.stream.reply_table.fleet(Fleet::take_vacancies)
            };
            match taken {
                Err(error) if start.elapsed() >= self.stream.limits.reply => return Err(error),
                Err(_) => future::or(changed, tick).await,
                Ok(vacancies) => return Ok(vacancies),
            }
        }
    }

    /// Checks, before anything changes, that the change is possible and permitted.
    fn check_plan(&self, goal: Goal, plan: &Plan, lanes: &Lanes) -> Result<()> {
        match goal {
            Goal::Replace => {
                let list = list(&lanes.members, &plan.new);
                self.helpers.admit(&list, plan.new.len())
            }
            Goal::Resize(_) => {
                lanes.check(&Command::Resize { epoch: 0, members: plan.members.clone().into() })?;
                plan.check_leave(lanes)
            }
        }
    }

    /// Starts the new workers, on a thread of its own, since that blocks. If the future is dropped, the thread ends them, and
    /// other callers wait for that.
    async fn start_new(
        &self,
        operation: &'static str,
        plan: &Plan,
        lanes: Lanes,
        busy: &Arc<Busy>,
    ) -> Result<Option<Started>> {
        if plan.new.is_empty() {
            return Ok(None);
        }
        let (table, busy, helpers) = (self.stream.reply_table.clone(), busy.clone(), self.helpers.clone());
        let (plan, growth) = (plan.clone(), self.growth.clone());
        let (sender, receiver) = oneshot::channel();
        let spawned = self.helpers.spawn("disco-replace", move || {
            let started = helpers.start(operation, false, || plan.lanes(&lanes, growth.as_ref()), &table);
            // The caller may have dropped its future.
            _ = sender.send(started.map(|lanes| Started::new(lanes, &helpers, &busy)));
        });
        spawned.map_err(|error| no_thread(operation, error))?;
        receiver.await.unwrap_or_else(|_| Err(panicked(operation))).map(Some)
    }

    /// Waits until no worker is inside a function, or fails in the next epoch. Returns none if the session is lost.
    ///
    /// # Errors
    /// A failure that no method has returned: it would be forgotten with the epoch.
    async fn settle(&self) -> Result<Option<Drained<'_>>> {
        match self.stream.drain("resize").await {
            Ok(drained) => self.stream.reply_table.check_told().map(|()| Some(drained)),
            Err(Error::Lost(_)) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// From now on, the session has the workers of `plan`, and takes no commands until the epoch has begun. No caller waits for
    /// replies: the session was drained, or its loss has ended all waits. Results that were not awaited end with the workers that
    /// leave.
    fn install(&self, operation: &str, plan: &Plan, new: Vec<NewLane>) -> Result<()> {
        let table = &self.stream.reply_table;
        let (before, unused) = {
            let mut order = self.stream.order();
            if self.stream.closed.load(Ordering::Acquire) {
                drop(order);
                end(&new);
                return Err(Error::Closed(operation.to_owned()));
            }
            let before = order.lanes.clone();
            WorkerRange::cover(plan.dismissed.iter().copied(), |_, _| true)
                .into_iter()
                .for_each(|dismissed| table.dismiss(dismissed));
            let (lanes, inboxes): (Vec<_>, Vec<_>) = new.into_iter().map(|new| new.take(table)).unzip();
            let (lanes, unused) = before.with(lanes, plan.members.clone());
            self.stream.set_lanes(&mut order, lanes);
            table.fleet(|fleet| fleet.change(&plan.members, &plan.new));
            if plan.grows(&before) {
                inboxes.iter().for_each(|inbox| inbox.repeat_losses());
            }
            (before, unused)
        };
        if plan.members == before.members {
            tracing::info!("{} replaced", list(&plan.members, &plan.new));
            metrics::replaced(plan.new.len());
        } else {
            tracing::info!(workers = plan.members.world().size(), "resized");
        }
        let is_used = |place: &WorkerId| unused.iter().all(|lane| !Arc::ptr_eq(lane, before.owner(*place)));
        let stays = plan.dismissed.iter().copied().filter(|place| !plan.lost.contains(place));
        let leaving: Vec<_> = stays.filter(is_used).collect();
        self.helpers.close_unused(unused);
        if !leaving.is_empty() {
            let table = table.clone();
            // At the end of the session, the lanes end the workers.
            _ = self.helpers.spawn("disco-close", move || see_off(&table, &before, &leaving));
        }
        Ok(())
    }

    /// Starts the next epoch on all workers, and ends the loss. Returns `None` if more workers were lost meanwhile.
    async fn begin_epoch(&self, operation: &str) -> Result<Option<Revived>> {
        let begun = async {
            let epoch = self.start_epoch(operation).await?;
            self.restore_new().await.map(|()| epoch)
        };
        let begun = begun.await;
        if self.stream.reply_table.check_replaced().is_err() {
            return Ok(None);
        }
        let epoch = begun?;
        self.stream.is_hung.store(false, Ordering::Relaxed);
        Ok(self.stream.reply_table.revive().map(|untold| Revived { epoch, untold }))
    }

    /// Sends the first commands of the next epoch. No other caller sends commands, since the session takes none.
    async fn start_epoch(&self, operation: &str) -> Result<u64> {
        let live = ReplyTable::check_replaced;
        let is_resized = self.stream.reply_table.fleet(|fleet| fleet.is_resized);
        let recover = |order: &mut Order| {
            let epoch = self.stream.reply_table.begin_next_epoch();
            let command = if is_resized {
                Command::Resize { epoch, members: order.lanes.members.clone().into() }
            } else {
                Command::Recover { epoch }
            };
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
    async fn restore_new(&self) -> Result<()> {
        let table = &self.stream.reply_table;
        while let Some(place) = table.fleet(|fleet| fleet.next_to_restore()) {
            // Workers that have left meanwhile were removed.
            let worker = self.stream.lanes().members.worker(place).unwrap_or(place);
            for (handle, value) in self.values_of(worker) {
                self.stream.set_while("set", ReplyTable::check_replaced, &handle, worker, value).await?;
            }
            table.fleet(|fleet| fleet.note_restored(place));
        }
        Ok(())
    }

    /// The registers of a new worker, with their values: what the program's function returns, which can't use the session.
    fn values_of(&self, worker: WorkerId) -> Vec<(DRef, Value)> {
        /// Ends the call of the function, which may panic.
        struct Call<'a>(&'a ReplyTable);

        impl Drop for Call<'_> {
            fn drop(&mut self) {
                self.0.fleet(|fleet| fleet.restores_on = None);
            }
        }

        let Some(restore) = self.helpers.restore() else { return Vec::new() };
        self.stream.reply_table.fleet(|fleet| fleet.restores_on = Some(thread::current().id()));
        let _call = Call(&self.stream.reply_table);
        restore(worker)
    }
}

/// Ends the workers with these places, whose lanes go on, unless they leave by themselves in time.
fn see_off(table: &ReplyTable, lanes: &Lanes, leaving: &[WorkerId]) {
    let begun = Instant::now();
    while !table.have_ended(leaving) {
        if table.fleet(|fleet| fleet.is_over()) {
            return;
        }
        if begun.elapsed() >= END_LIMIT {
            let end =
                |place: &WorkerId| lanes.owner(*place).starts().into_iter().for_each(|it| it.end((*place).into()));
            leaving.iter().for_each(end);
            return;
        }
        thread::sleep(POLL_INTERVAL);
    }
}

/// The workers with these places as text.
pub(super) fn list(members: &Members, places: &BTreeSet<WorkerId>) -> String {
    WorkerRange::list(&places.iter().filter_map(|place| members.worker(*place)).collect::<Vec<_>>())
}
