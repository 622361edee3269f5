//! File descriptors that workers of one machine hand to each other.

use std::fmt::Debug;
use std::os::fd::OwnedFd;
use std::time::Duration;

use crate::error::Result;
use crate::id::WorkerId;

/// Hands file descriptors to peers on this machine.
pub trait Descriptors: Debug + Send + Sync {
    /// Shares a descriptor with peers, which receive it by the returned name. The caller passes the name through the
    /// store.
    ///
    /// # Errors
    /// The descriptor can't be shared.
    fn share(&self, fd: OwnedFd) -> Result<SharedFd>;

    /// Stops sharing a descriptor. Peers that have received it keep it.
    fn unshare(&self, fd: SharedFd);

    /// Receives a descriptor that a peer shares.
    ///
    /// # Errors
    /// No process shares the descriptor, or the process that shared it has ended;
    /// [`Error::Deadline`](crate::Error::Deadline).
    fn receive(&self, fd: SharedFd, deadline: Duration) -> Result<OwnedFd>;
}

/// The name of a descriptor shared with [`Descriptors::share`], unique in the session.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct SharedFd(u64);

impl SharedFd {
    /// The name of descriptor `number` of a worker, for lanes whose workers name their descriptors.
    pub const fn of(worker: WorkerId, number: u32) -> Self {
        Self((worker.index() as u64 + 1) << 32 | number as u64)
    }

    /// The worker that shares the descriptor, if [`SharedFd::of`] made the name.
    pub const fn owner(self) -> Option<WorkerId> {
        match (self.0 >> 32) as u32 {
            0 => None,
            above => Some(WorkerId::new(above - 1)),
        }
    }

    /// The name, to put in a store.
    pub const fn to_bits(self) -> u64 {
        self.0
    }

    /// The name, read from a store.
    pub const fn from_bits(bits: u64) -> Self {
        Self(bits)
    }
}
