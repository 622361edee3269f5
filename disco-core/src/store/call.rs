//! Calls of the store as data.

use std::sync::Arc;
use std::time::Duration;

/// A call of the [`Store`](crate::Store).
#[non_exhaustive]
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StoreCall {
    /// `set(key, value)`
    Set(Arc<str>, Arc<[u8]>),
    /// `get(key)`
    Get(Arc<str>),
    /// `wait(key, deadline)`; there is no answer after the deadline.
    Wait(Arc<str>, Duration),
    /// `add(key, amount)`
    Add(Arc<str>, i64),
    /// `compare_and_set(key, expected, new)`
    CompareAndSet(Arc<str>, Option<Arc<[u8]>>, Arc<[u8]>),
    /// `delete(key)`
    Delete(Arc<str>),
}
