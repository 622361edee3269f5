//! File descriptors that workers of one machine hand to each other.

use std::fmt::Debug;
use std::os::fd::OwnedFd;
use std::time::Duration;

use crate::error::Result;
use crate::id::WorkerId;

/// Hands file descriptors to peers on this machine.
pub trait Descriptors: Debug + Send + Sync {
    /// Hands a descriptor to peers; they take it by the name returned, which goes through the store.
    ///
    /// # Errors
    /// The descriptor can't be passed on.
    fn share(&self, fd: OwnedFd) -> Result<SharedFd>;

    /// Takes a shared descriptor back; peers that have received it keep it.
    fn unshare(&self, fd: SharedFd);

    /// A descriptor that a peer shared.
    ///
    /// # Errors
    /// Nobody shared it, or whoever did is gone; [`Error::Deadline`](crate::Error::Deadline).
    fn receive(&self, fd: SharedFd, deadline: Duration) -> Result<OwnedFd>;
}

/// The name of a descriptor handed over with [`Descriptors::share`], unique in the session.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct SharedFd(u64);

impl SharedFd {
    /// The name of a worker's descriptor of this number, where workers name their own.
    pub const fn of(worker: WorkerId, number: u32) -> Self {
        Self((worker.index() as u64 + 1) << 32 | number as u64)
    }

    /// Whose it is, if it was named so.
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
