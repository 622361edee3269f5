//! Aborts, which end waits from another thread, and the epochs that aborts belong to.
//!
//! An **epoch** is the time between two recoveries of a session. Each abort signal carries its epoch, because a signal
//! may arrive after its epoch is over, or before the worker has begun it.

mod epoch;
mod registry;

use std::sync::Arc;

pub use epoch::{PerEpoch, Refused};
pub use registry::AbortRegistry;

/// Something that waits on peers and can be told to stop.
pub trait Abort: Send + Sync {
    /// Makes present and later waits return [`Error::Aborted`](crate::Error::Aborted) with this cause. May be called
    /// from any thread, any number of times; the first cause stays. May block, but not for ever.
    fn abort(&self, cause: &Arc<str>);
}
