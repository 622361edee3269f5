//! Aborts, which end waits from another thread, and the epochs that aborts belong to.
//!
//! An **epoch** is the time between two recoveries of a session. Each abort signal carries its epoch, because a signal
//! may arrive after its epoch is over, or before the worker has begun it.

mod epoch;
mod registry;

pub use crate::abort_cause::AbortCause;
pub use epoch::{PerEpoch, Refused};
pub use registry::AbortRegistry;
#[cfg(test)]
pub(crate) use registry::tests::Heard;

/// Something that waits on peers and can be told to stop.
///
/// A backend registers one for each communicator in [`Backend::connect`](crate::Backend::connect):
///
/// ```
/// # use std::sync::{Arc, OnceLock};
/// use disco_core::{Abort, AbortCause, Link};
///
/// /// The state that the ranks of a communicator poll while they wait.
/// #[derive(Default)]
/// struct Cause(OnceLock<AbortCause>);
///
/// impl Abort for Cause {
///     fn abort(&self, cause: &AbortCause) {
///         _ = self.0.set(cause.clone()); // The first cause stays.
///     }
/// }
///
/// let (link, cause) = (Link::bare(Arc::default()), Arc::new(Cause::default())); // `link` is `params.link` in `connect`.
/// link.on_abort(&(cause.clone() as Arc<dyn Abort>)); // The link is weak: the communicator keeps `cause`.
/// link.abort(0, &"worker 1 failed".into());
/// assert_eq!(cause.0.get(), Some(&"worker 1 failed".into()));
/// ```
pub trait Abort: Send + Sync {
    /// Makes present and later waits return [`Error::Aborted`](crate::Error::Aborted) with this cause. May be called
    /// from any thread, any number of times; the first cause stays. May block, but not for ever.
    fn abort(&self, cause: &AbortCause);
}
