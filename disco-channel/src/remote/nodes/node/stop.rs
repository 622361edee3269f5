//! Tells a node from outside of its session that it has to stop.

use std::sync::{Arc, Mutex};

use disco_core::sync;

use crate::remote::reactor::Waker;

/// A handle to stop a node: [`JoinOptions::stop`](super::JoinOptions::stop). Clones are handles to the same node.
#[derive(Clone, Default)]
pub struct StopHandle(Arc<Mutex<State>>);

#[derive(Default)]
struct State {
    why: Option<String>,
    /// Wakes the node's thread, once the node serves a session.
    waker: Option<Arc<Waker>>,
}

impl StopHandle {
    /// Makes a handle that stops no node yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// Makes the node stop its workers and end with an error. It tells its controller, and the nodes that it relays for,
    /// `why`: a sentence on the node, such as "the node was told to stop by SIGTERM". Returns at once. Returns false if the
    /// node serves no session, so nothing ends.
    pub fn request(&self, why: impl Into<String>) -> bool {
        let mut state = sync::lock(&self.0);
        let Some(waker) = state.waker.clone() else { return false };
        state.why = Some(why.into());
        waker.wake();
        true
    }

    /// The node serves a session until the result is dropped.
    pub(super) fn listen(&self, waker: Arc<Waker>) -> Listening {
        sync::lock(&self.0).waker = Some(waker);
        Listening(self.clone())
    }

    /// The reason to stop, once.
    pub(super) fn take(&self) -> Option<String> {
        sync::lock(&self.0).why.take()
    }
}

/// A node that serves a session, and so can be told to stop.
#[must_use = "dropping it ends the session"]
pub(super) struct Listening(StopHandle);

impl Drop for Listening {
    fn drop(&mut self) {
        *sync::lock(&self.0.0) = State::default();
    }
}

disco_core::format_as!(Debug for StopHandle, |it| "StopHandle {{ why: {:?}, .. }}", sync::lock(&it.0).why);
