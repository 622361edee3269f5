//! Ending waits from outside, and the epochs that aborts belong to.
//!
//! An **epoch** is the time between two recoveries of a session. Signals carry their epoch: a signal may come after its
//! epoch is over, and before the worker has begun it.

mod epoch;
mod registry;

use std::sync::Arc;

pub use epoch::{PerEpoch, Refused};
pub use registry::AbortRegistry;

/// Something that waits on peers and can be told to stop.
pub trait Abort: Send + Sync {
    /// Makes whatever waits return [`Error::Aborted`](crate::Error::Aborted) with this cause, now and from now on.
    /// Callable from any thread, any number of times; the first cause stays. Never blocks for ever.
    fn abort(&self, cause: &Arc<str>);
}
