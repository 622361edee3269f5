//! The key-value store of a session, which workers share for the rendezvous of data planes.

mod call;
mod memory;
mod view;

use std::fmt::Debug;
use std::sync::Arc;
use std::time::Duration;

pub use call::StoreCall;
pub use memory::MemoryStore;
pub use view::View;

use crate::abort::Refused;
use crate::error::{Error, Result};
use crate::value::Value;

/// A key-value store that all workers of a session share. Workers may use it also while a command runs.
///
/// # Errors
/// All methods: [`Error::Aborted`] once the session was aborted, [`Error::Lost`] if the connection to the store is cut.
///
/// ```
/// # use std::{sync::Arc, time::Duration};
/// use disco_core::Link;
///
/// // Workers that come in any order: the first one publishes an address, and the other ones wait for it.
/// let store = Link::bare(Arc::default()).store(); // `ctx.store()` in a worker function
/// if store.add("arrived", 1)? == 1 {
///     store.set("address", b"host:4000")?;
/// }
/// assert_eq!(store.wait("address", Duration::from_secs(5))?, b"host:4000");
/// # Ok::<(), disco_core::Error>(())
/// ```
pub trait Store: Debug + Send + Sync {
    /// Sets `key` to `value`.
    fn set(&self, key: &str, value: &[u8]) -> Result<()>;

    /// The current value of `key`, if it is set.
    fn get(&self, key: &str) -> Result<Option<Vec<u8>>>;

    /// Waits until `key` is set and returns its value; [`Error::Deadline`] after `deadline`.
    fn wait(&self, key: &str, deadline: Duration) -> Result<Vec<u8>>;

    /// Adds to the number under `key`, with wrapping, and returns the sum. A key that is not set counts as 0. Numbers
    /// have 8 bytes, little endian; any other value is an [`Error::Invalid`].
    fn add(&self, key: &str, amount: i64) -> Result<i64>;

    /// Sets `key` to `new` if its value is `expected` (`None`: not set). Returns the value of `key` afterwards.
    fn compare_and_set(&self, key: &str, expected: Option<&[u8]>, new: &[u8]) -> Result<Vec<u8>>;

    /// Removes `key` and returns whether it was set.
    fn delete(&self, key: &str) -> Result<bool>;
}

/// The store that all workers of one process share, or a client of a remote store. Each worker uses it through a
/// [`View`] of the worker's epoch.
pub trait SharedStore: Debug + Send + Sync {
    /// Starts an epoch, and clears aborts of earlier epochs. Each worker calls `begin`; calls after the first have no
    /// effect.
    fn begin(&self, epoch: u64);

    /// Fails all waiting and later calls of `epoch`. Does nothing once `epoch` is over.
    fn abort(&self, epoch: u64, cause: &Arc<str>);

    /// Executes a call of a worker in `epoch` and passes the result to `tell`, at once or later on another thread. The
    /// result is [`Error::Aborted`] if the epoch is over. `tell` may never be called for a wait whose deadline has
    /// passed.
    fn call(&self, epoch: u64, call: StoreCall, tell: Box<dyn FnOnce(Result<Value>) + Send>);
}

/// The error of calls in an epoch that is over.
pub fn over() -> Error {
    Refused::Over.into()
}
