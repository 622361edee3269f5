//! The workers of a session, and the places of their lanes that they have.

use std::ops::Range;
use std::sync::Arc;

use crate::error::{Error, Result};
use crate::id::WorkerId;
use crate::worker_range::WorkerRange;
use crate::world::World;

/// The workers of a session by their places. A *place* is the number by which a lane knows a worker, and never changes.
/// Worker `i` has the `i`-th place that has a worker: after a [resize](crate::Session::resize), places of workers that have
/// left or are lost are skipped.
///
/// ```
/// use disco_core::{Members, WorkerId, WorkerRange, World};
///
/// // Of five workers, worker 2 was dismissed.
/// let places = [0, 1, 3, 4].map(WorkerId::new);
/// let members = Members::new(World::new(4, 2)?, places)?;
/// assert_eq!(members.place(WorkerId::new(2)), Some(WorkerId::new(3)));
/// assert_eq!(members.worker(WorkerId::new(4)), Some(WorkerId::new(3)));
/// assert_eq!(members.name(WorkerId::new(4)), "worker 3");
/// assert_eq!(members.name(WorkerId::new(2)), "a worker that a resize has dropped");
/// assert_eq!(members.workers(WorkerRange::new(2..5)), WorkerRange::new(2..4));
/// # Ok::<(), disco_core::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Members {
    world: World,
    /// The places that have workers, as ranges that do not touch each other. Not empty.
    places: Arc<[WorkerRange]>,
}

impl Members {
    /// The workers of a new session: each worker's place is its number.
    pub fn first(world: World) -> Self {
        Self { world, places: [WorkerRange::new(0..world.size() as u32)].into() }
    }

    /// The workers of `world`, which have these places, in ascending order.
    ///
    /// # Errors
    /// The places are not in ascending order, or their number is not that of the workers.
    pub fn new(world: World, places: impl IntoIterator<Item = WorkerId>) -> Result<Self> {
        Self::of_ranges(world, WorkerRange::cover(places, |_, _| true))
    }

    /// [`Self::new`] from ranges of places.
    pub(crate) fn of_ranges(world: World, places: Vec<WorkerRange>) -> Result<Self> {
        let are_in_order = places.windows(2).all(|pair| pair[0].indices().end < pair[1].indices().start);
        let count: usize = places.iter().map(WorkerRange::len).sum();
        if are_in_order && count == world.size() && places.iter().all(|places| !places.is_empty()) {
            Ok(Self { world, places: places.into() })
        } else {
            Err(Error::invalid(format!("{} workers can't have the places of {places:?}", world.size())))
        }
    }

    /// The workers and their groups.
    pub const fn world(&self) -> World {
        self.world
    }

    /// Whether each worker's place is its number.
    pub fn is_plain(&self) -> bool {
        matches!(&self.places[..], [places] if places.first().index() == 0)
    }

    /// The places that have workers, as ranges in ascending order that do not touch each other.
    pub fn ranges(&self) -> &[WorkerRange] {
        &self.places
    }

    /// The place of each worker, in the order of workers.
    pub fn places(&self) -> impl Iterator<Item = WorkerId> + '_ {
        self.places.iter().flatten()
    }

    /// The place of a worker; `None` if there is no such worker.
    pub fn place(&self, worker: WorkerId) -> Option<WorkerId> {
        let mut at = worker.index();
        for places in self.places.iter() {
            match places.get(at) {
                None => at -= places.len(),
                place => return place,
            }
        }
        None
    }

    /// The worker that has a place; `None` if no worker has it.
    pub fn worker(&self, place: WorkerId) -> Option<WorkerId> {
        self.workers(place.into()).get(0)
    }

    /// The worker that has a place, for messages.
    pub fn name(&self, place: WorkerId) -> String {
        self.worker(place).map_or_else(|| "a worker that a resize has dropped".to_owned(), |worker| worker.to_string())
    }

    /// The workers that have some of these places.
    pub fn workers(&self, places: WorkerRange) -> WorkerRange {
        let Range { start, end } = places.indices();
        let before = |place: usize| -> u32 {
            let below = |range: &WorkerRange| place.clamp(range.indices().start, range.indices().end);
            self.places.iter().map(|range| (below(range) - range.indices().start) as u32).sum()
        };
        WorkerRange::new(before(start)..before(end))
    }

    /// The parts of `places` that no worker has.
    pub fn gaps(&self, places: WorkerRange) -> Vec<WorkerRange> {
        WorkerRange::cover(places.iter().filter(|place| self.worker(*place).is_none()), |_, _| true)
    }

    /// Whether no worker has one of these places.
    pub fn have_none_of(&self, places: WorkerRange) -> bool {
        self.workers(places).is_empty()
    }
}

/// A session of one worker.
impl Default for Members {
    fn default() -> Self {
        Self::first(World::ONE)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn places_and_workers_are_inverse(places in prop::collection::btree_set(0u32..40, 1..20), range in (0u32..45, 0u32..45)) {
            let ids: Vec<WorkerId> = places.iter().copied().map(WorkerId::new).collect();
            let members = Members::new(World::new(ids.len(), 1).unwrap(), ids.iter().copied()).unwrap();
            prop_assert_eq!(members.places().collect::<Vec<_>>(), ids.clone());
            prop_assert_eq!(members.is_plain(), ids.iter().enumerate().all(|(at, place)| place.index() == at));
            for (at, place) in ids.iter().enumerate() {
                let worker = WorkerId::new(at as u32);
                prop_assert_eq!((members.place(worker), members.worker(*place)), (Some(*place), Some(worker)));
            }
            prop_assert_eq!(members.place(WorkerId::new(ids.len() as u32)), None);
            let range = WorkerRange::new(range.0..range.0 + range.1);
            let model: BTreeSet<usize> =
                ids.iter().enumerate().filter(|(_, place)| range.contains(**place)).map(|(at, _)| at).collect();
            prop_assert_eq!(members.workers(range).indices().collect::<BTreeSet<_>>(), model);
            prop_assert!(range.iter().all(|place| members.worker(place).is_some() == ids.contains(&place)));
            let gaps = members.gaps(range);
            prop_assert_eq!(gaps.iter().map(WorkerRange::len).sum::<usize>() + members.workers(range).len(), range.len());
            prop_assert!(gaps.iter().flatten().all(|place| range.contains(place) && members.worker(place).is_none()));
        }
    }

    #[test]
    fn places_out_of_order_or_too_few_are_refused() {
        let world = World::new(2, 1).unwrap();
        let text =
            |places: &[u32]| Members::new(world, places.iter().copied().map(WorkerId::new)).unwrap_err().to_string();
        assert!(text(&[3, 1]).starts_with("2 workers can't have the places of "), "{}", text(&[3, 1]));
        assert!(text(&[1, 1]).starts_with("2 workers"));
        assert!(text(&[4]).starts_with("2 workers"));
    }
}
