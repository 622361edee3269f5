//! Changes the number of workers.
//!
//! Lanes know their workers by places, which never change; [`Members`] tells which places have workers, and so their
//! numbers. The session translates numbers to places where it makes commands, and places to numbers in the
//! [table](super::reply_table) that gets the reports of lanes. Workers learn their numbers from the command that begins the
//! epoch ([`Command::Resize`]).

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread;
use std::time::{Duration, Instant};

use super::asking::Drained;
use super::fleet::{Busy, Fleet};
use super::lane_session::LaneSession;
use super::lane_set::Lanes;
use super::new_lanes::{END_LIMIT, NewLane, end};
use super::replacing::Taken;
use super::reply_table::{Losses, ReplyTable};
use crate::channel::Channel;
use crate::command::Command;
use crate::error::{Error, Result};
use crate::id::WorkerId;
use crate::members::Members;
use crate::worker_range::WorkerRange;
use crate::world::World;

/// Interval of looking whether workers have left.
const POLL_INTERVAL: Duration = Duration::from_millis(10);

/// The result of [`Session::resize`](super::Session::resize).
#[non_exhaustive]
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Resized {
    /// For each worker before, in order, its number now; `None` if it has left or is lost. "Before" is the last call of
    /// `resize` or [`replace_lost`](super::Session::replace_lost) that succeeded, or the start of the session.
    pub numbers: Vec<Option<WorkerId>>,
    /// The workers that are new since then, in order, by their numbers now.
    pub workers: Vec<WorkerId>,
    /// Number of the session's epoch: a new one unless the call did nothing.
    pub epoch: u64,
}

/// What a resize changes.
struct Plan {
    members: Members,
    /// Places of the workers that are dropped or leave.
    gone: Vec<WorkerId>,
    /// Places of the new workers.
    new: WorkerRange,
}

impl Plan {
    /// # Errors
    /// The session can't have so many workers.
    fn new(lanes: &Lanes, lost: &BTreeSet<WorkerId>, size: usize, per_node: Option<usize>) -> Result<Self> {
        let refuse = |why: String| Err(Error::invalid(format!("resize to {size}: {why}")));
        let world = match World::new(size, lanes.members.world().groups()) {
            Ok(world) => world,
            Err(error) => return refuse(error.to_string()),
        };
        let (mut stay, mut gone): (Vec<_>, Vec<_>) = lanes.members.places().partition(|place| !lost.contains(place));
        gone.extend(stay.drain(size.min(stay.len())..));
        gone.sort();
        let nodes = match per_node {
            None => 1,
            Some(per_node) if !size.is_multiple_of(per_node) => {
                return refuse(format!("each node has {per_node} workers, so the number must be a multiple of that"));
            }
            Some(per_node) => {
                let numbers: Vec<_> = gone.iter().filter_map(|place| lanes.members.worker(*place)).collect();
                let are_nodes = numbers.chunk_by(|one, other| one.index() / per_node == other.index() / per_node);
                if are_nodes.map(<[_]>::len).any(|workers| workers != per_node) {
                    let gone = WorkerRange::list(&numbers);
                    return refuse(format!(
                        "only whole nodes can leave, which have {per_node} workers here, and {gone} would; end the process of the \
                         node of a lost worker, and ask again"
                    ));
                }
                size / per_node
            }
        };
        let count = (size - stay.len()) as u32;
        let Some(end) = lanes.next_place.checked_add(count) else { return refuse("no places are left".to_owned()) };
        let new = WorkerRange::new(lanes.next_place..end);
        let members = Members::new(world.on_nodes(nodes)?, stay.into_iter().chain(new))?;
        Ok(Self { members, gone, new })
    }

    /// Whether all workers stay and none is new.
    fn is_empty(&self) -> bool {
        self.gone.is_empty() && self.new.is_empty()
    }
}

impl LaneSession {
    /// Sets how the session makes lanes to new workers. Otherwise [`Session::resize`](super::Session::resize) can't add
    /// workers.
    #[must_use]
    pub fn with_growth(
        mut self,
        growth: impl Fn(WorkerRange, World) -> Result<Arc<dyn Channel>> + Send + Sync + 'static,
    ) -> Self {
        self.growth = Some(Arc::new(growth));
        self
    }

    /// Sets that each machine has `per_node` consecutive workers, also if there is one machine only: a resize keeps whole
    /// nodes. Default: the number of the world if it has several machines.
    #[must_use]
    pub fn with_workers_per_node(mut self, per_node: usize) -> Self {
        self.per_node = Some(per_node.max(1));
        self
    }

    /// Implements [`Session::resize`](super::Session::resize).
    pub(super) async fn resize_and_report(&self, size: usize) -> Result<Resized> {
        self.fleet.stop_preparing();
        let busy = self.begin_replacing("resize").await?;
        let epoch = self.resize_to(size, &busy).await?;
        self.fleet.set_failed(false);
        let (numbers, workers) = self.take_unreported();
        Ok(Resized { numbers, workers, epoch })
    }

    /// What no call has returned yet: for each worker before, its number now; and the new workers.
    pub(super) fn take_unreported(&self) -> (Vec<Option<WorkerId>>, Vec<WorkerId>) {
        let members = self.stream.lanes().members;
        let (before, new) = self.fleet.take_unreported(&members);
        let before = before.unwrap_or_else(|| Members::first(self.first_world));
        let numbers = before.places().map(|place| members.worker(place)).collect();
        (numbers, new.into_iter().filter_map(|place| members.worker(place)).collect())
    }

    /// Changes the number of workers. Returns the number of the epoch.
    async fn resize_to(&self, size: usize, busy: &Arc<Busy>) -> Result<u64> {
        loop {
            // They count as workers that are not lost.
            self.give_prepared()?;
            let (lost, is_lost) = match self.losses("resize").await? {
                Losses::None => (BTreeSet::new(), false),
                Losses::Workers(lost) => (lost, true),
            };
            let mut taken = Taken { table: &self.stream.reply_table, lost };
            let before = self.stream.lanes();
            let plan = Plan::new(&before, &taken.lost, size, self.per_node)?;
            if !plan.is_empty() {
                let command = Command::Resize { epoch: 0, members: plan.members.clone().into() };
                before.check(&command)?;
                check_leave(&before, &plan.members)?;
                let new = self.start_growth(&plan, busy).await?;
                let drained = match is_lost {
                    true => None,
                    false => match self.settle().await? {
                        Some(drained) => Some(drained),
                        None => continue,
                    },
                };
                self.change(&plan, new, &taken.lost)?;
                drop(drained);
                taken.lost.clear();
            } else if !is_lost {
                return Ok(self.stream.reply_table.epoch());
            }
            if let Some(revived) = self.begin_epoch("resize").await? {
                return Ok(revived.epoch);
            }
        }
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

    /// Starts the new workers.
    async fn start_growth(&self, plan: &Plan, busy: &Arc<Busy>) -> Result<Vec<NewLane>> {
        if plan.new.is_empty() {
            return Ok(Vec::new());
        }
        let Some(growth) = &self.growth else {
            return Err(Error::state("resize: the session can't start more workers; start a new session"));
        };
        let lane = growth(plan.new, plan.members.world())?;
        let workers = lane.facts().workers;
        if workers != plan.new {
            return Err(Error::invalid(format!("resize: a lane to {workers} where {} are due", plan.new)));
        }
        self.start_new("resize", move || Ok(vec![lane]), busy).await
    }

    /// From now on, the session has the workers of `plan`, and is lost until the epoch has begun. No caller waits for replies:
    /// the session was drained, or its loss has ended all waits.
    fn change(&self, plan: &Plan, new: Vec<NewLane>, lost: &BTreeSet<WorkerId>) -> Result<()> {
        let Plan { members, gone, new: places } = plan;
        let before = self.stream.lanes();
        let unused = {
            let mut order = self.stream.order();
            if self.stream.closed.load(Ordering::Acquire) {
                drop(order);
                end(&new);
                return Err(Error::Closed("resize".to_owned()));
            }
            tracing::info!(workers = members.world().size(), "resized");
            let gone_ranges = WorkerRange::cover(gone.iter().copied(), |_, _| true);
            gone_ranges.iter().for_each(|places| self.stream.reply_table.dismiss(*places));
            let (lanes, inboxes): (Vec<_>, Vec<_>) =
                new.into_iter().map(|new| new.take(&self.stream.reply_table)).unzip();
            let (lanes, unused) = before.with(lanes, members.clone());
            self.stream.set_lanes(&mut order, lanes);
            self.stream.reply_table.change_members();
            inboxes.iter().for_each(|inbox| inbox.repeat_losses());
            self.fleet.note_resized(gone, *places);
            unused
        };
        let is_used = |place: &WorkerId| unused.iter().all(|lane| !Arc::ptr_eq(lane, before.owner(*place)));
        let stays = gone.iter().copied().filter(|place| !lost.contains(place));
        let leaving: Vec<_> = stays.filter(is_used).collect();
        self.close_unused(unused);
        if !leaving.is_empty() {
            let (table, fleet) = (self.stream.reply_table.clone(), self.fleet.clone());
            // At the end of the session, the lanes end the workers.
            _ = self.fleet.spawn("disco-close", move || see_off(&table, &fleet, &before, &leaving));
        }
        Ok(())
    }

    /// The command that begins an epoch for the session's workers, of which some may be new.
    pub(super) fn first_command(&self, epoch: u64, lanes: &Lanes) -> Command {
        match self.fleet.is_resized() {
            false => Command::Recover { epoch },
            true => Command::Resize { epoch, members: lanes.members.clone().into() },
        }
    }
}

/// Checks that the workers that are not among `members` can leave.
///
/// # Errors
/// The reason why not.
fn check_leave(lanes: &Lanes, members: &Members) -> Result<()> {
    lanes.iter().filter_map(|lane| Some((lane.facts().workers, lane.starts()?))).try_for_each(|(workers, starts)| {
        members.gaps(workers).into_iter().try_for_each(|part| starts.check_leave(part))
    })
}

/// Ends the workers with these places, whose lanes go on, unless they leave by themselves in time.
fn see_off(table: &ReplyTable, fleet: &Fleet, lanes: &Lanes, leaving: &[WorkerId]) {
    let begun = Instant::now();
    while !table.have_ended(leaving) {
        if fleet.is_over() {
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

#[cfg(test)]
mod tests {
    use super::*;

    /// The places after a resize of a session of `before` workers, or the reason why it is refused.
    fn resize(before: World, lost: &[u32], size: usize) -> std::result::Result<Vec<usize>, String> {
        let lanes = Lanes::new(Vec::new(), Members::first(before));
        let per_node = (before.nodes() > 1).then(|| before.per_node());
        let plan = Plan::new(&lanes, &lost.iter().copied().map(WorkerId::new).collect(), size, per_node);
        plan.map(|plan| plan.members.places().map(WorkerId::index).collect()).map_err(|error| error.to_string())
    }

    #[test]
    fn lost_workers_are_dropped_first_and_new_ones_join_at_the_end() {
        let five = World::new(5, 1).unwrap();
        assert_eq!(resize(five, &[2], 4).unwrap(), [0, 1, 3, 4]);
        assert_eq!(resize(five, &[2], 3).unwrap(), [0, 1, 3]);
        assert_eq!(resize(five, &[], 2).unwrap(), [0, 1]);
        assert_eq!(resize(five, &[2, 4], 5).unwrap(), [0, 1, 3, 5, 6]);
        assert_eq!(resize(five, &[0], 5).unwrap(), [1, 2, 3, 4, 5]);
        assert_eq!(resize(five, &[], 5).unwrap(), [0, 1, 2, 3, 4]);
    }

    #[test]
    fn a_world_that_can_not_be_is_refused_with_the_reason() {
        let four = World::new(4, 2).unwrap();
        let refused = |world, lost: &[u32], size| resize(world, lost, size).unwrap_err();
        assert_eq!(refused(four, &[], 0), "resize to 0: 0 workers in 2 groups: a session needs at least 1 worker");
        assert_eq!(refused(four, &[1], 3), "resize to 3: 3 workers in 2 groups: groups must be of equal size");
        let on_nodes = World::new(6, 1).unwrap().on_nodes(3).unwrap();
        assert_eq!(resize(on_nodes, &[2, 3], 4).unwrap(), [0, 1, 4, 5]);
        assert_eq!(
            refused(on_nodes, &[], 5),
            "resize to 5: each node has 2 workers, so the number must be a multiple of that"
        );
        assert_eq!(
            refused(on_nodes, &[2], 4),
            "resize to 4: only whole nodes can leave, which have 2 workers here, and workers 2, 5 would; end the process of \
             the node of a lost worker, and ask again"
        );
    }
}
