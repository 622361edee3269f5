//! The lanes of a session, and the one that each worker belongs to.

use std::ops::Deref;
use std::sync::Arc;

use crate::channel::Channel;
use crate::id::WorkerId;

/// Lanes that together reach all workers, in the order of workers, and behind them the lanes to workers that replaced lost
/// ones. The last lane that reaches a worker owns it. Clones share the list.
#[derive(Clone, Debug)]
pub(super) struct Lanes(Arc<[Arc<dyn Channel>]>);

impl Lanes {
    /// The lane that owns `worker`, which is a worker of the session.
    pub(super) fn owner(&self, worker: WorkerId) -> &Arc<dyn Channel> {
        // Never none: lanes reach every worker of the session.
        self.iter().rfind(|lane| lane.workers().contains(worker)).unwrap_or(&self[0])
    }

    /// The workers that `lane` owns.
    pub(super) fn owned<'a>(&'a self, lane: &'a Arc<dyn Channel>) -> impl Iterator<Item = WorkerId> + 'a {
        lane.workers().into_iter().filter(|worker| Arc::ptr_eq(self.owner(*worker), lane))
    }

    /// Whether all lanes accept a frame.
    pub(super) fn have_capacity(&self, is_large: bool) -> bool {
        self.iter().all(|lane| capacity(&**lane, is_large) > 0)
    }

    /// Whether `other` is a clone of this list.
    pub(super) fn is(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

impl Deref for Lanes {
    type Target = [Arc<dyn Channel>];

    fn deref(&self) -> &Self::Target {
        &self.0
    }
}

impl Default for Lanes {
    fn default() -> Self {
        Self([].into())
    }
}

impl From<Vec<Arc<dyn Channel>>> for Lanes {
    fn from(lanes: Vec<Arc<dyn Channel>>) -> Self {
        Self(lanes.into())
    }
}

impl FromIterator<Arc<dyn Channel>> for Lanes {
    fn from_iter<I: IntoIterator<Item = Arc<dyn Channel>>>(lanes: I) -> Self {
        Self(lanes.into_iter().collect())
    }
}

/// Number of frames that a lane has capacity for: of any size, or with at most
/// [`SMALL_FRAME`](crate::channel::SMALL_FRAME) bytes of values.
pub(super) fn capacity(lane: &dyn Channel, is_large: bool) -> usize {
    if is_large { lane.room() } else { lane.room_for_small() }
}
