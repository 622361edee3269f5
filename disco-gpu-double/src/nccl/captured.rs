//! Units in graphs: each launch of a graph does them anew, behind all that the communicator was given before. A communicator does not
//! end before its graphs are destroyed (`localPersistentRefs` in NCCL).

use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;

use super::clique::Clique;
use super::comm::Comm;

/// That a graph, or work of one, has a unit of a communicator.
pub(super) struct InGraph(Arc<Comm>);

/// Waits until no graph has a unit of the communicator.
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
        if let Some(seat) = self.0.seat_if_any() {
            // Who ends the communicator looks again.
            seat.clique.change(|_| ());
        }
    }
}
