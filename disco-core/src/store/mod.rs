//! Rendezvous of data planes: small values under names, shared by all workers.

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

/// A key-value store that every worker of a session reaches, also while a command runs.
///
/// # Errors
/// All methods: [`Error::Aborted`] once the session was aborted, [`Error::Lost`] where the way to the store is cut.
pub trait Store: Debug + Send + Sync {
    /// Puts `value` under `key`, over what was there.
    fn set(&self, key: &str, value: &[u8]) -> Result<()>;

    /// The value under `key`, if there is one now.
    fn get(&self, key: &str) -> Result<Option<Vec<u8>>>;

    /// The value under `key`, as soon as there is one; [`Error::Deadline`] after `deadline`.
    fn wait(&self, key: &str, deadline: Duration) -> Result<Vec<u8>>;

    /// Adds to the number under `key` (an absent one is 0) and returns the sum, wrapping. Numbers are 8 bytes, little
    /// endian; other values are [`Error::Invalid`].
    fn add(&self, key: &str, amount: i64) -> Result<i64>;

    /// Puts `new` under `key` if the value there is `expected` (`None`: no value). Returns the value there afterwards.
    fn compare_and_set(&self, key: &str, expected: Option<&[u8]>, new: &[u8]) -> Result<Vec<u8>>;

    /// Removes `key`; says whether it was there.
    fn delete(&self, key: &str) -> Result<bool>;
}

/// The store of all workers of one process, or the way to it. Each worker sees it through a [`View`] of the worker's epoch.
pub trait SharedStore: Debug + Send + Sync {
    /// Starts an epoch, unless it was begun already (each worker says so when it gets there): aborts of earlier ones are
    /// forgotten.
    fn begin(&self, epoch: u64);

    /// Fails all calls, waiting and to come, unless `epoch` is over.
    fn abort(&self, epoch: u64, cause: &Arc<str>);

    /// Does what a worker of `epoch` asks for, and tells the result, now or later on another thread: [`Error::Aborted`] once the
    /// epoch is over. `tell` may never be called for a wait whose deadline has passed.
    fn call(&self, epoch: u64, call: StoreCall, tell: Box<dyn FnOnce(Result<Value>) + Send>);
}

/// The error of calls in an epoch that is over.
pub fn over() -> Error {
    Refused::Over.into()
}
