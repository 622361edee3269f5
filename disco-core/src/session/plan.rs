//! Which workers a session gets: the members, the places that become free, and those of new workers.
//!
//! # Invariants
//! - A lane knows its workers by **places**, which never change; without a resize, a worker's number is its place. A
//!   resize changes the session's list of places (`Members`): new lanes get places that no worker has had. So numbers
//!   rise with places, and a range of places is a range of numbers. Frames and lanes name workers by places; users,
//!   ranks and texts by numbers. The session translates in two places: where it makes a frame for one worker, and in
//!   `ReplyTable`, where reports of lanes arrive. A reply is read with the members at the time of its command.
//!   Workers learn their numbers from `Command::Resize`, the first command of the epoch; a worker whose place is not
//!   in it leaves, and its lane, which has seen the command, does not report it as lost. From the first resize on,
//!   each new worker gets this command in place of `Recover`.

use std::collections::BTreeSet;
use std::sync::Arc;

use super::new_lanes::replacements;
use crate::channel::Channel;
use crate::error::{Error, Result};
use crate::id::WorkerId;
use crate::members::Members;
use crate::stream::lane_set::Lanes;
use crate::worker_range::WorkerRange;
use crate::world::World;

/// Makes a lane, not started, to new workers: to their places, in the world that they join.
pub(super) type Growth = Arc<dyn Fn(WorkerRange, World) -> Result<Arc<dyn Channel>> + Send + Sync>;

/// What a caller wants of the workers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Goal {
    /// None is lost.
    Replace,
    /// There are so many, and none is lost.
    Resize(usize),
}

/// A change of the workers.
#[derive(Clone, Debug)]
pub(super) struct Plan {
    /// The workers from then on.
    pub(super) members: Members,
    /// Places of lost workers, which are replaced or dropped.
    pub(super) lost: BTreeSet<WorkerId>,
    /// Places of workers that are dropped or leave.
    pub(super) dismissed: Vec<WorkerId>,
    /// Places of new workers.
    pub(super) new: BTreeSet<WorkerId>,
}

impl Goal {
    /// The method that a caller uses.
    pub(super) const fn operation(self) -> &'static str {
        match self {
            Self::Replace => "replace_lost",
            Self::Resize(_) => "resize",
        }
    }
}

impl Plan {
    /// Workers with the places of `lost`.
    pub(super) fn replacement(members: &Members, lost: BTreeSet<WorkerId>) -> Self {
        Self { members: members.clone(), dismissed: Vec::new(), new: lost.clone(), lost }
    }

    /// `size` workers, without `lost` ones. Each machine has `per_node` workers if there can be several machines.
    ///
    /// # Errors
    /// The session can't have so many workers.
    pub(super) fn resize(
        lanes: &Lanes,
        lost: BTreeSet<WorkerId>,
        size: usize,
        per_node: Option<usize>,
    ) -> Result<Self> {
        let refuse = |why: String| Err(Error::invalid(format!("resize to {size}: {why}")));
        let world = match World::new(size, lanes.members.world().groups()) {
            Ok(world) => world,
            Err(error) => return refuse(error.to_string()),
        };
        let (mut stay, mut dismissed): (Vec<_>, Vec<_>) =
            lanes.members.places().partition(|place| !lost.contains(place));
        dismissed.extend(stay.drain(size.min(stay.len())..));
        dismissed.sort();
        let nodes = match per_node {
            None => 1,
            Some(per_node) if !size.is_multiple_of(per_node) => {
                return refuse(format!("each node has {per_node} workers, so the number must be a multiple of that"));
            }
            Some(per_node) => {
                let numbers: Vec<_> = dismissed.iter().filter_map(|place| lanes.members.worker(*place)).collect();
                let are_nodes = numbers.chunk_by(|one, other| one.index() / per_node == other.index() / per_node);
                if are_nodes.map(<[_]>::len).any(|workers| workers != per_node) {
                    let dismissed = WorkerRange::list(&numbers);
                    return refuse(format!(
                        "only whole nodes can leave, which have {per_node} workers here, and {dismissed} would; replace the lost workers, or \
                         end the processes of their nodes, and ask again"
                    ));
                }
                size / per_node
            }
        };
        let count = (size - stay.len()) as u32;
        let Some(end) = lanes.next_place.checked_add(count) else { return refuse("no places are left".to_owned()) };
        let new = WorkerRange::new(lanes.next_place..end);
        let members = Members::new(world.on_nodes(nodes)?, stay.into_iter().chain(new))?;
        Ok(Self { members, lost, dismissed, new: new.iter().collect() })
    }

    /// Whether all workers stay and none is new.
    pub(super) fn is_empty(&self) -> bool {
        self.dismissed.is_empty() && self.new.is_empty()
    }

    /// Whether the new workers have places that no worker has had.
    pub(super) fn grows(&self, lanes: &Lanes) -> bool {
        self.new.first().is_some_and(|place| place.index() >= lanes.next_place as usize)
    }

    /// Lanes, not started, to the new workers.
    ///
    /// # Errors
    /// The session can't start them.
    pub(super) fn lanes(&self, lanes: &Lanes, growth: Option<&Growth>) -> Result<Vec<Arc<dyn Channel>>> {
        if !self.grows(lanes) {
            return replacements(lanes, &self.new);
        }
        let Some(growth) = growth else {
            return Err(Error::state("resize: the session can't start more workers; start a new session"));
        };
        // A resize has no gaps between new places.
        let new = WorkerRange::cover(self.new.iter().copied(), |_, _| true)[0];
        let lane = growth(new, self.members.world())?;
        let workers = lane.facts().workers;
        if workers != new {
            return Err(Error::invalid(format!("resize: a lane to {workers} where {new} are due")));
        }
        Ok(vec![lane])
    }

    /// Checks that the workers that are not members can leave, those of `lanes`.
    ///
    /// # Errors
    /// The reason why not.
    pub(super) fn check_leave(&self, lanes: &Lanes) -> Result<()> {
        lanes.iter().filter_map(|lane| Some((lane.facts().workers, lane.starts()?))).try_for_each(
            |(workers, starts)| self.members.gaps(workers).into_iter().try_for_each(|part| starts.check_leave(part)),
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The places after a resize of a session of `before` workers, or the reason why it is refused.
    fn resize(before: World, lost: &[u32], size: usize) -> std::result::Result<Vec<usize>, String> {
        let lanes = Lanes::new(Vec::new(), Members::first(before));
        let per_node = (before.nodes() > 1).then(|| before.per_node());
        let plan = Plan::resize(&lanes, lost.iter().copied().map(WorkerId::new).collect(), size, per_node);
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
            "resize to 4: only whole nodes can leave, which have 2 workers here, and workers 2, 5 would; replace the lost \
             workers, or end the processes of their nodes, and ask again"
        );
    }
}
