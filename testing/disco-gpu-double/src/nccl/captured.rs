//! Units in graphs. Each launch of a graph runs its units again, behind all earlier units of the communicator. A
//! communicator ends only after its graphs are destroyed (`localPersistentRefs` in NCCL).

use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;

use super::clique::Clique;
use super::comm::Comm;

/// A reference of a graph, or of its running work, to a communicator.
pub(super) struct InGraph(Arc<Comm>);

/// Waits until no graph refers to the communicator.
pub(super) fn wait(comm: &Comm, clique: &Clique) {
    clique.wait_regardless(|_| comm.captured.load(SeqCst) == 0);
}

impl InGraph {
    pub(super) fn new(comm: &Arc<Comm>) -> Self {
        comm.captured.fetch_add(1, SeqCst);
        Self(Arc::clone(comm))
    }
}

impl Drop for InGraph {
    fn drop(&mut self) {
        self.0.captured.fetch_sub(1, SeqCst);
        if let Some(membership) = self.0.membership_if_any() {
            // Wakes a thread in `wait`.
            membership.clique.change(|_| ());
        }
    }
}
