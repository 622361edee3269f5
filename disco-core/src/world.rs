//! The number of workers and their groups.

use std::ops::Range;

use crate::error::{Error, Result};
use crate::id::{GroupId, WorkerId};

/// The size of a session, its split into equal groups of consecutive workers, and the machines that it spans.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct World {
    workers: u32,
    groups: u32,
    nodes: u32,
}

impl World {
    /// One worker.
    pub(crate) const ONE: Self = Self { workers: 1, groups: 1, nodes: 1 };

    /// `workers` workers in `groups` equal groups.
    ///
    /// # Errors
    /// There are no workers or no groups, or the number of groups does not divide the number of workers.
    pub fn new(workers: usize, groups: usize) -> Result<Self> {
        let refuse = |why| Err(Error::invalid(format!("{workers} workers in {groups} groups: {why}")));
        let (Ok(w), Ok(g)) = (u32::try_from(workers), u32::try_from(groups)) else {
            return refuse("too many");
        };
        match (w, g) {
            (0, _) => refuse("a session needs at least 1 worker"),
            (_, 0) => refuse("a session needs at least 1 group"),
            _ if w % g != 0 => refuse("groups must be of equal size"),
            _ => Ok(Self { workers: w, groups: g, nodes: 1 }),
        }
    }

    /// Places the workers on `nodes` machines, with an equal number of consecutive workers on each.
    ///
    /// # Errors
    /// There are no nodes, or the number of nodes does not divide the number of workers.
    ///
    /// ```
    /// use disco_core::{WorkerId, World};
    ///
    /// // 8 workers on 2 machines, in 4 groups: groups do not depend on the machines.
    /// let world = World::new(8, 4)?.on_nodes(2)?;
    /// assert_eq!((world.group_size(), world.nodes()), (2, 2));
    /// assert_eq!(world.group_of(WorkerId::new(5)).index(), 2);
    /// assert!(world.on_nodes(3).is_err());
    /// # Ok::<(), disco_core::Error>(())
    /// ```
    pub fn on_nodes(self, nodes: usize) -> Result<Self> {
        match u32::try_from(nodes) {
            Ok(nodes @ 1..) if self.workers.is_multiple_of(nodes) => Ok(Self { nodes, ..self }),
            _ => Err(Error::invalid(format!(
                "{} workers on {nodes} nodes: each node has as many workers, and at least 1",
                self.workers
            ))),
        }
    }

    /// Number of workers.
    pub const fn size(&self) -> usize {
        self.workers as usize
    }

    /// Number of groups.
    pub const fn groups(&self) -> usize {
        self.groups as usize
    }

    /// Number of machines.
    pub const fn nodes(&self) -> usize {
        self.nodes as usize
    }

    /// Number of workers of each machine.
    pub const fn per_node(&self) -> usize {
        (self.workers / self.nodes) as usize
    }

    /// Number of workers of each group.
    pub const fn group_size(&self) -> usize {
        (self.workers / self.groups) as usize
    }

    /// All workers.
    pub fn workers(&self) -> impl Iterator<Item = WorkerId> + use<> {
        (0..self.workers).map(WorkerId::new)
    }

    /// The group of a worker.
    pub fn group_of(&self, worker: WorkerId) -> GroupId {
        GroupId::new((worker.index() / self.group_size()) as u32)
    }

    /// The workers of a group.
    pub fn members(&self, group: GroupId) -> Range<usize> {
        let first = group.index() * self.group_size();
        first..first + self.group_size()
    }

    /// Whether a worker is the first of its group.
    pub fn is_group_root(&self, worker: WorkerId) -> bool {
        worker.index().is_multiple_of(self.group_size())
    }

    /// Checks that `worker` belongs to this world and returns it.
    ///
    /// # Errors
    /// [`Error::NoSuchWorker`].
    pub fn check(&self, worker: WorkerId) -> Result<WorkerId> {
        if worker.index() < self.size() {
            Ok(worker)
        } else {
            Err(Error::NoSuchWorker { worker, workers: self.size() })
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn groups_are_equal_ranges_of_consecutive_workers() {
        let world = World::new(6, 3).unwrap();
        assert_eq!(world.group_of(WorkerId::new(3)), GroupId::new(1));
        assert_eq!(world.members(GroupId::new(1)), 2..4);
        assert!(world.is_group_root(WorkerId::new(4)) && !world.is_group_root(WorkerId::new(5)));
    }

    #[test]
    fn unequal_groups_are_an_error() {
        let text = |w, g| World::new(w, g).unwrap_err().to_string();
        assert_eq!(text(4, 3), "4 workers in 3 groups: groups must be of equal size");
        assert_eq!(text(0, 1), "0 workers in 1 groups: a session needs at least 1 worker");
        assert_eq!(text(4, 0), "4 workers in 0 groups: a session needs at least 1 group");
        let text = |nodes| World::new(4, 1).unwrap().on_nodes(nodes).unwrap_err().to_string();
        assert_eq!(text(3), "4 workers on 3 nodes: each node has as many workers, and at least 1");
        assert_eq!(text(0), "4 workers on 0 nodes: each node has as many workers, and at least 1");
    }
}
