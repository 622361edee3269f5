//! Counters of launched work and of live resources.

use crate::cuda::{ipc, memory, pinned, stream};
use crate::nccl::{comm, tally};

/// Counters of this process.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[allow(clippy::exhaustive_structs, reason = "C callers have it")]
pub struct Counts {
    /// Launched units: a call outside of groups is one unit, and a group is one unit for each communicator.
    pub units: u64,
    /// Calls of collectives, sends and receives, including rejected ones.
    pub calls: u64,
    /// Allocations that are not freed, of devices and of pinned memory.
    pub allocations: u64,
    /// Streams that are not destroyed.
    pub streams: u64,
    /// Communicators that are neither destroyed nor aborted.
    pub comms: u64,
    /// Opened memory handles of other processes that are not closed. A handle that was opened twice counts twice.
    pub opened: u64,
}

/// Reads the counters.
pub(crate) fn read() -> Counts {
    Counts {
        units: tally::units(),
        calls: tally::calls(),
        allocations: (memory::live() + pinned::live()) as u64,
        streams: stream::live() as u64,
        comms: comm::live() as u64,
        opened: ipc::live() as u64,
    }
}
