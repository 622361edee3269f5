//! What the double has been asked to do, and what has not been given back to it.

use crate::cuda::{ipc, memory, pinned, stream};
use crate::nccl::{comm, tally};

/// Numbers of this process.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[allow(clippy::exhaustive_structs, reason = "C callers have it")]
pub struct Counts {
    /// Units launched: groups, and calls outside of groups, of each communicator.
    pub units: u64,
    /// Calls of collectives, sends and receives, refused ones too.
    pub calls: u64,
    /// Allocations that are not freed, of devices and of pinned memory.
    pub allocations: u64,
    /// Streams that are not destroyed.
    pub streams: u64,
    /// Communicators that are neither destroyed nor aborted.
    pub comms: u64,
    /// Handles of other processes' memory that are not closed; one that was opened twice counts twice.
    pub opened: u64,
}

/// The numbers.
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
