//! Replacement without being asked ([`ReplacementPolicy::at_once`](super::ReplacementPolicy::at_once)).
//!
//! ```text
//! thread `disco-replace`                      the next methods of the session
//! takes vacancies from the fleet              the first one returns the loss, unless a wait has returned it
//! starts lanes to new workers          ──▶    a later one waits for these lanes, gives them to the session, and begins an
//!                                             epoch, as `replace_lost` does
//! ```
//!
//! So frames are sent by callers only, and the thread owns nothing that the session's end waits for but lanes that start.

use std::sync::{Arc, Mutex};

use event_listener::Listener as _;

use super::changing::list;
use super::helpers::{Busy, Helpers, Ready};
use super::lane_session::LaneSession;
use super::new_lanes::end;
use super::plan::{Goal, Plan};
use super::replacement_policy::When;
use crate::stream::fleet::Fleet;
use crate::stream::order::Order;
use crate::stream::reply_table::ReplyTable;
use crate::sync;

impl LaneSession {
    /// Starts the thread that starts new workers as soon as others are lost, if the policy says so. Without the thread,
    /// callers start them.
    pub(super) fn prepare_in_background(&self) {
        if !self.replaces_at_once() {
            return;
        }
        let ahead = Ahead {
            helpers: self.helpers.clone(),
            table: self.stream.reply_table.clone(),
            order: self.stream.order.clone(),
        };
        if let Err(error) = self.helpers.spawn("disco-replace", move || ahead.run()) {
            tracing::warn!(%error, "lost workers are replaced at the next command only");
        }
    }

    /// Whether [`Session::recover`](super::Session::recover) has to replace workers.
    pub(super) fn replaces_on_recovery(&self) -> bool {
        self.when == When::Recovered && self.stream.reply_table.check_lost().is_err()
    }
}

/// The thread that starts workers ahead of callers.
struct Ahead {
    helpers: Arc<Helpers>,
    table: Arc<ReplyTable>,
    order: Arc<Mutex<Order>>,
}

impl Ahead {
    /// Starts workers until the session ends.
    fn run(&self) {
        loop {
            let changed = self.table.fleet_changed.listen();
            if self.table.fleet(|fleet| fleet.is_over()) {
                return;
            }
            if self.helpers.policy().when != When::AtOnce || !self.start() {
                changed.wait();
            }
        }
    }

    /// Starts new workers in the places of lost ones. Returns false if that is not due.
    fn start(&self) -> bool {
        let table = &self.table;
        let (lost, lanes) = {
            let order = sync::lock(&self.order);
            let Some(lost) = table.fleet(Fleet::begin_ahead) else { return false };
            (lost, order.lanes.clone())
        };
        let _busy = Busy::new(table);
        let plan = Plan::replacement(&lanes.members, lost);
        let (list, count) = (list(&lanes.members, &plan.new), plan.new.len());
        let admitted = self.helpers.admit(&list, count);
        let make = || plan.lanes(&lanes, None);
        match admitted.and_then(|()| self.helpers.start(Goal::Replace.operation(), true, make, table)) {
            Ok(lanes) if table.fleet(Fleet::keep_ready) => {
                self.helpers.count(count);
                self.helpers.keep(Ready { places: plan.new, lanes });
            }
            Ok(lanes) => end(&lanes),
            Err(error) => {
                tracing::warn!(%error, "lost workers are not replaced before the next command");
                table.fleet(|fleet| fleet.has_failed = true);
            }
        }
        true
    }
}
