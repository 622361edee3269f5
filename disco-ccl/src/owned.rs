//! A communicator of the library's, with what ends after it.

#![allow(unsafe_code)]

use std::sync::Arc;

use crate::abi::Comm;
use crate::pinned::DeferFrees;
use crate::siblings::{Sibling, Siblings};

/// A communicator, or null before it is made and after it was taken out. Pinned memory stays until it is dropped.
#[derive(Debug)]
pub(crate) struct OwnedComm(pub(crate) Comm, DeferFrees, Option<Sibling>);

// SAFETY: the library takes a communicator from any thread, one at a time; it is behind a lock, or taken out from there.
unsafe impl Send for OwnedComm {}

impl OwnedComm {
    pub(crate) fn new(comm: Comm) -> Self {
        Self(comm, DeferFrees::new(), None)
    }

    /// The ranks of the communicator in this process, once it has any operations.
    pub(crate) fn siblings(&self) -> Option<Arc<Siblings>> {
        self.2.as_ref().map(|sibling| sibling.all().clone())
    }

    /// It is one of the communicator's ranks in this process from now on.
    pub(crate) fn join(&mut self, sibling: Sibling) {
        self.2 = Some(sibling);
    }
}
