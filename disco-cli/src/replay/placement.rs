//! The recorded worker that each worker of the replay stands in for.

use disco::World;

/// The recorded world and the world of the replay. A worker stands in for the recorded worker at the same position of the
/// same group; groups and positions that the recording lacks begin again at the first.
#[derive(Clone, Copy)]
pub(super) struct Placement {
    pub(super) recorded: World,
    pub(super) replayed: World,
}

impl Placement {
    /// The recorded worker of a worker of the replay.
    pub(super) fn source(&self, worker: usize) -> usize {
        place(&self.replayed, worker, &self.recorded)
    }

    /// The worker of the replay that gets commands for one recorded worker.
    pub(super) fn target(&self, worker: usize) -> usize {
        place(&self.recorded, worker % self.recorded.size(), &self.replayed)
    }

    /// The peer of a worker of the replay in the communicator of all workers: as far from it in groups and in positions
    /// as the recorded peer. `None` if there is no such worker.
    pub(super) fn peer(&self, worker: usize, peer: usize) -> Option<usize> {
        let (from, size) = (self.source(worker), self.recorded.group_size());
        let groups = (peer / size) as i64 - (from / size) as i64;
        let positions = (peer % size) as i64 - (from % size) as i64;
        let size = self.replayed.group_size() as i64;
        let (group, position) = (worker as i64 / size + groups, worker as i64 % size + positions);
        let exists = (0..self.replayed.groups() as i64).contains(&group) && (0..size).contains(&position);
        exists.then_some((group * size + position) as usize)
    }

    /// As [`Self::peer`], in the communicator of a group.
    pub(super) fn peer_in_group(&self, worker: usize, peer: usize) -> Option<usize> {
        let (from, size) = (self.source(worker) % self.recorded.group_size(), self.replayed.group_size());
        let position = (worker % size) as i64 + peer as i64 - from as i64;
        usize::try_from(position).ok().filter(|position| *position < size)
    }
}

fn place(from: &World, worker: usize, to: &World) -> usize {
    let (group, position) = (worker / from.group_size(), worker % from.group_size());
    group % to.groups() * to.group_size() + position % to.group_size()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn placement(recorded: (usize, usize), replayed: (usize, usize)) -> Placement {
        let world = |(workers, groups)| World::new(workers, groups).unwrap();
        Placement { recorded: world(recorded), replayed: world(replayed) }
    }

    #[test]
    fn workers_of_a_larger_world_repeat_groups_and_positions() {
        let larger = placement((4, 2), (9, 3));
        let sources: Vec<_> = (0..9).map(|worker| larger.source(worker)).collect();
        assert_eq!(sources, [0, 1, 0, 2, 3, 2, 0, 1, 0]);
        assert_eq!([0, 1, 2, 3].map(|worker| larger.target(worker)), [0, 1, 3, 4]);
        let same = placement((4, 2), (4, 2));
        assert!((0..4).all(|worker| same.source(worker) == worker && same.target(worker) == worker));
    }

    #[test]
    fn peers_keep_their_distance_in_groups_and_positions() {
        let more_groups = placement((4, 2), (6, 3));
        assert_eq!(more_groups.peer(1, 3), Some(3), "the same position of the next group");
        assert_eq!(more_groups.peer(5, 3), None, "the last group has no next one");
        assert_eq!(more_groups.peer_in_group(2, 1), Some(1));
        assert_eq!(placement((4, 1), (2, 1)).peer(1, 3), None);
    }
}
