//! The library's communicator, with the guards that are dropped after it.

#![allow(unsafe_code)]

use std::sync::Arc;

use crate::abi::Comm;
use crate::pinned::DeferFrees;
use crate::siblings::{Sibling, Siblings};

/// A communicator; null before its creation and after it was taken out. The guards defer frees of pinned memory, and
/// keep this rank among the ranks of its communicator in this process.
#[derive(Debug)]
pub(crate) struct OwnedComm(pub(crate) Comm, DeferFrees, Option<Sibling>);

// SAFETY: the library accepts a communicator on any thread, one at a time. It is behind a lock, or was taken out and
// has one owner.
unsafe impl Send for OwnedComm {}

impl OwnedComm {
    pub(crate) fn new(comm: Comm) -> Self {
        Self(comm, DeferFrees::new(), None)
    }

    /// The ranks of the communicator in this process; None before [`OwnedComm::join`].
    pub(crate) fn siblings(&self) -> Option<Arc<Siblings>> {
        self.2.as_ref().map(|sibling| sibling.all().clone())
    }

    /// Adds this rank to the communicator's ranks in this process.
    pub(crate) fn join(&mut self, sibling: Sibling) {
        self.2 = Some(sibling);
    }
}
