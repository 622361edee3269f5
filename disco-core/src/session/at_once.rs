//! Replacement without being asked ([`ReplacementPolicy::at_once`](super::ReplacementPolicy::at_once)).
//!
//! ```text
//! thread `disco-replace`                      the next methods of the session
//! takes lost workers from the table           the first one returns the loss, unless a wait has returned it
//! starts lanes to new workers          ──▶    a later one waits for these lanes, gives them to the session, and begins an
//!                                             epoch, as `replace_lost` does
//! ```
//!
//! So frames are sent by callers only, and the thread owns nothing that the session's end waits for but lanes that start.

use std::pin::pin;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};

use futures_lite::future::{self, Future};

use super::fleet::{Fleet, Prepared};
use super::lane_session::LaneSession;
use super::new_lanes::{end, replacements};
use super::order::Order;
use super::replacement_policy::ReplacementPolicy;
use super::replacing::{Taken, list};
use super::reply_table::{Losses, ReplyTable};
use super::starting::start;
use crate::error::{Error, Result};
use crate::sync;

impl LaneSession {
    /// Sets when lost workers are replaced, and how often.
    #[must_use]
    pub fn with_replacement(mut self, policy: ReplacementPolicy) -> Self {
        self.fleet.finish();
        self.fleet = Arc::new(Fleet::new(policy));
        if self.replaces_at_once() {
            self.prepare_in_background();
        }
        self
    }

    /// Starts the thread that starts new workers as soon as others are lost. Without the thread, callers start them.
    fn prepare_in_background(&self) {
        let (fleet, table, order) = (self.fleet.clone(), self.stream.reply_table.clone(), self.stream.order.clone());
        if let Err(error) = self.fleet.spawn("disco-replace", move || watch(&fleet, &table, &order)) {
            tracing::warn!(%error, "lost workers are replaced at the next command only");
        }
    }

    /// Runs a method of the session once lost workers are replaced. If the session does not replace them at once, this is
    /// `method` alone.
    pub(super) async fn while_running<T, F>(&self, method: impl FnOnce() -> F) -> Result<T>
    where
        F: Future<Output = Result<T>>,
    {
        self.await_replacement().await?;
        method().await.inspect_err(|error| self.note_told(error))
    }

    /// If `error` is a loss or the failure of a worker, no later method returns it again that would otherwise not fail.
    pub(super) fn note_told(&self, error: &Error) {
        match error {
            Error::Lost(_) => _ = self.stream.reply_table.take_untold(),
            Error::Worker(_) | Error::Earlier { .. } => self.stream.reply_table.note_failure_told(),
            _ => {}
        }
    }

    /// Waits until lost workers are replaced, if the session does that at once.
    ///
    /// # Errors
    /// The loss, if no method has returned it yet; or the reason why workers can't be replaced.
    pub(super) async fn await_replacement(&self) -> Result<()> {
        if !self.replaces_at_once() || self.stream.closed.load(Ordering::Acquire) {
            return Ok(());
        }
        Box::pin(self.await_replacement_at_once()).await
    }

    async fn await_replacement_at_once(&self) -> Result<()> {
        if let Some(loss) = self.stream.reply_table.take_untold() {
            return self.stream.explain(Err(loss)).await;
        }
        match self.stream.reply_table.check_lost() {
            Ok(()) => Ok(()),
            // A worker that was lost meanwhile is replaced, too.
            Err(_) => self.replace().await?.untold.map_or(Ok(()), Err),
        }
    }
}

/// Prepares new workers until the session ends.
fn watch(fleet: &Arc<Fleet>, table: &Arc<ReplyTable>, order: &Mutex<Order>) {
    loop {
        let (lost, free) = (table.has_losses.listen(), fleet.is_free.listen());
        if fleet.is_over() {
            return;
        }
        if !is_due(fleet, table) || !prepare(fleet, table, order) {
            future::block_on(future::or(pin!(lost), pin!(free)));
        }
    }
}

/// Whether workers are lost for which no new ones have started, and no attempt has failed.
fn is_due(fleet: &Fleet, table: &ReplyTable) -> bool {
    let lost = table.known_losses();
    // A new worker that is lost at once is replaced by the next caller, so that no more start than the program notices.
    !lost.is_empty() && !fleet.has_failed() && !fleet.has_prepared(&lost)
}

/// Starts new workers in the places of lost ones. Returns false if a caller is at it.
fn prepare(fleet: &Arc<Fleet>, table: &Arc<ReplyTable>, order: &Mutex<Order>) -> bool {
    let Some(_busy) = fleet.try_begin() else { return false };
    let (losses, lanes) = {
        let order = sync::lock(order);
        // A caller may have replaced them meanwhile.
        let losses = if is_due(fleet, table) { table.take_losses() } else { Ok(Losses::None) };
        (losses, order.lanes.clone())
    };
    let Ok(Losses::Workers(lost)) = losses else { return true };
    let mut taken = Taken { table, lost };
    let admitted = fleet.admit(&list(&lanes.members, &taken.lost), taken.lost.len());
    fleet.note_preparing();
    let started = admitted.and_then(|()| start(fleet, "replace_lost", || replacements(&lanes, &taken.lost), table));
    let is_stopped = fleet.has_stopped_preparing();
    match started {
        Ok(lanes) if is_stopped => {
            end(&lanes);
            fleet.set_failed(true);
        }
        Ok(lanes) => {
            fleet.count(taken.lost.len());
            fleet.keep_prepared(Prepared { lost: std::mem::take(&mut taken.lost), lanes });
        }
        Err(error) => {
            tracing::warn!(%error, "lost workers are not replaced before the next command");
            fleet.set_failed(true);
        }
    }
    true
}
