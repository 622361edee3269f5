//! The presence of ranks.

#[cfg(not(loom))]
use super::PROCESS;
use super::{Board, PRESENCE};
#[cfg(not(loom))]
use crate::identity::ProcessIdentity;
use crate::sync::Ordering;

/// The state of a rank's connection, in the order of its life.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Presence {
    /// The rank has not arrived yet.
    Absent,
    /// The rank is connecting, and its area has the name of its arena and its process.
    Arrived,
    /// The rank has a communicator.
    Connected,
    /// The rank has dropped its communicator.
    Left,
}

impl Board {
    /// The presence of `rank`.
    pub(crate) fn presence(&self, rank: usize) -> Presence {
        match self.at(rank, PRESENCE).load(Ordering::Acquire) {
            0 => Presence::Absent,
            1 => Presence::Arrived,
            2 => Presence::Connected,
            _ => Presence::Left,
        }
    }

    /// Sets the presence of `rank` and wakes waiting ranks.
    pub(crate) fn set_presence(&self, rank: usize, presence: Presence) {
        self.at(rank, PRESENCE).store(presence as u64, Ordering::Release);
        match presence {
            Presence::Left => self.alarm(),
            _ => self.wake_sleepers(),
        }
    }

    /// Sets the presence of a rank that is absent. Returns false if it was not absent.
    pub(crate) fn arrive(&self, rank: usize, presence: Presence) -> bool {
        let cell = self.at(rank, PRESENCE);
        let arrived = cell.compare_exchange(0, presence as u64, Ordering::AcqRel, Ordering::Relaxed).is_ok();
        self.wake_sleepers();
        arrived
    }

    /// Whether `rank` has dropped its communicator. If so, all its earlier writes are visible.
    pub(crate) fn has_left(&self, rank: usize) -> bool {
        self.presence(rank) == Presence::Left
    }

    /// The name under which `rank` shares its arena. None if the rank has not arrived, or shares none.
    pub(crate) fn arena(&self, rank: usize) -> Option<u64> {
        self.at(rank, PRESENCE + 1).load(Ordering::Relaxed).checked_sub(1)
    }

    /// Sets the name of `rank`'s arena, before the rank arrives.
    pub(crate) fn set_arena(&self, rank: usize, name: u64) {
        self.at(rank, PRESENCE + 1).store(name.wrapping_add(1), Ordering::Relaxed);
    }

    /// The process of `rank`, as the rank has set it.
    #[cfg(not(loom))]
    pub(crate) fn process(&self, rank: usize) -> ProcessIdentity {
        let [id, started, namespaces] = [0, 1, 2].map(|word| self.at(rank, PROCESS + word).load(Ordering::Relaxed));
        ProcessIdentity { id: id as u32, started, namespaces }
    }

    /// Sets the process of `rank`, before the rank arrives.
    #[cfg(not(loom))]
    pub(crate) fn set_process(&self, rank: usize, process: ProcessIdentity) {
        for (word, value) in [process.id.into(), process.started, process.namespaces].into_iter().enumerate() {
            self.at(rank, PROCESS + word).store(value, Ordering::Relaxed);
        }
    }

    /// The processor that `rank` was last seen on. None if the rank has not published it.
    #[cfg(not(loom))]
    pub(crate) fn processor(&self, rank: usize) -> Option<usize> {
        self.at(rank, PROCESS + 3).load(Ordering::Relaxed).checked_sub(1).map(|processor| processor as usize)
    }

    /// Publishes the processor of `rank`.
    #[cfg(not(loom))]
    pub(crate) fn set_processor(&self, rank: usize, processor: usize) {
        self.at(rank, PROCESS + 3).store(processor as u64 + 1, Ordering::Relaxed);
    }
}
