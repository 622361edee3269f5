//! Who is there.

#[cfg(not(loom))]
use super::PROCESS;
use super::{Board, PRESENCE};
#[cfg(not(loom))]
use crate::identity::ProcessIdentity;
use crate::sync::Ordering;

/// Whether a rank can be waited for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Presence {
    /// Has not connected yet.
    Absent,
    /// Is connecting: what it has to show before is there.
    Arrived,
    /// Has a communicator.
    Connected,
    /// Dropped it.
    Left,
}

impl Board {
    /// Where `rank` is.
    pub(crate) fn presence(&self, rank: usize) -> Presence {
        match self.at(rank, PRESENCE).load(Ordering::Acquire) {
            0 => Presence::Absent,
            1 => Presence::Arrived,
            2 => Presence::Connected,
            _ => Presence::Left,
        }
    }

    /// `rank` comes, or goes, which whoever waits is told.
    pub(crate) fn set_presence(&self, rank: usize, presence: Presence) {
        self.at(rank, PRESENCE).store(presence as u64, Ordering::Release);
        match presence {
            Presence::Left => self.alarm(),
            _ => self.wake_sleepers(),
        }
    }

    /// `rank` comes for the first time. False if it has already.
    pub(crate) fn arrive(&self, rank: usize, presence: Presence) -> bool {
        let cell = self.at(rank, PRESENCE);
        let arrived = cell.compare_exchange(0, presence as u64, Ordering::AcqRel, Ordering::Relaxed).is_ok();
        self.wake_sleepers();
        arrived
    }

    /// Whether `rank` has dropped its communicator. What it did before can be seen.
    pub(crate) fn has_left(&self, rank: usize) -> bool {
        self.presence(rank) == Presence::Left
    }

    /// The name under which `rank` shares its tensors' memory, if it has come and does.
    pub(crate) fn arena(&self, rank: usize) -> Option<u64> {
        self.at(rank, PRESENCE + 1).load(Ordering::Relaxed).checked_sub(1)
    }

    /// Says where `rank`'s tensors are, before it comes.
    pub(crate) fn set_arena(&self, rank: usize, name: u64) {
        self.at(rank, PRESENCE + 1).store(name.wrapping_add(1), Ordering::Relaxed);
    }

    /// The process that `rank` said it lives in.
    #[cfg(not(loom))]
    pub(crate) fn process(&self, rank: usize) -> ProcessIdentity {
        let [id, started, namespaces] = [0, 1, 2].map(|word| self.at(rank, PROCESS + word).load(Ordering::Relaxed));
        ProcessIdentity { id: id as u32, started, namespaces }
    }

    /// Says which process `rank` lives in, before it comes.
    #[cfg(not(loom))]
    pub(crate) fn set_process(&self, rank: usize, process: ProcessIdentity) {
        for (word, value) in [process.id.into(), process.started, process.namespaces].into_iter().enumerate() {
            self.at(rank, PROCESS + word).store(value, Ordering::Relaxed);
        }
    }
}
