//! What the double has been asked to do, and what has not been given back to it.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use crate::cuda::{ipc, memory, pinned, stream};
use crate::nccl::comm;

static UNITS: AtomicU64 = AtomicU64::new(0);
static CALLS: AtomicU64 = AtomicU64::new(0);

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

/// One more unit.
pub(crate) fn unit() {
    UNITS.fetch_add(1, Relaxed);
}

/// One more call.
pub(crate) fn call() {
    CALLS.fetch_add(1, Relaxed);
}

/// The numbers.
pub(crate) fn read() -> Counts {
    Counts {
        units: UNITS.load(Relaxed),
        calls: CALLS.load(Relaxed),
        allocations: (memory::live() + pinned::live()) as u64,
        streams: stream::live() as u64,
        comms: comm::live() as u64,
        opened: ipc::live() as u64,
    }
}
