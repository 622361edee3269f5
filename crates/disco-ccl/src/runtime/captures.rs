//! The state of the captures of one stream.

use std::sync::{Arc, Mutex, MutexGuard, TryLockError};

use disco_core::sync;

use super::graphs::{Graphs, Kept};
use crate::driver::GraphFunctions;
use crate::heap::Span;

/// Captures of one stream.
pub(super) struct Captures {
    /// The driver's functions, or the reason why the driver has no graphs.
    pub(super) functions: Result<GraphFunctions, String>,
    /// Held while the stream is queried and while memory is freed on the stream, so that no capture begins meanwhile.
    state: Mutex<CaptureState>,
}

#[derive(Default)]
pub(super) struct CaptureState {
    /// The needs of the operations so far; set during [`Runtime::capture`](super::Runtime::capture).
    pub(super) needs: Option<Needs>,
    /// Memory that tensors gave back while the program captured the stream itself.
    pub(super) deferred: Vec<Span>,
}

/// What the operations of a graph need.
#[derive(Default)]
pub(super) struct Needs {
    pub(super) kept: Vec<Kept>,
    /// Memory of tensors that were dropped during the capture: captured work may use it.
    pub(super) spans: Vec<Span>,
    /// The communicators of the operations.
    pub(super) users: Vec<Arc<Graphs>>,
}

impl Captures {
    /// Captures by these functions, or the reason why the driver has no graphs.
    pub(super) fn new(functions: Result<GraphFunctions, String>) -> Self {
        Self { functions, state: Mutex::default() }
    }

    pub(super) fn state(&self) -> MutexGuard<'_, CaptureState> {
        sync::lock(&self.state)
    }

    /// None while another thread holds the lock.
    pub(super) fn try_state(&self) -> Option<MutexGuard<'_, CaptureState>> {
        match self.state.try_lock() {
            Ok(state) => Some(state),
            Err(TryLockError::Poisoned(state)) => Some(state.into_inner()),
            Err(TryLockError::WouldBlock) => None,
        }
    }
}

disco_core::format_as!(
    Debug for Captures, |it|
    "{}", if it.state().needs.is_some() { "<a capture>" } else { "<no capture>" }
);
