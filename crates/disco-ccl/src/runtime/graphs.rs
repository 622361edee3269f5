//! The graphs of a communicator. One that ends takes the executable form out of each of its graphs, since NCCL ends no
//! communicator before its graphs are destroyed.

use std::any::Any;
use std::mem;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, Weak};

use disco_core::AbortCause;
use disco_core::sync;

/// An owner of memory that a graph uses.
pub(crate) type Kept = Arc<dyn Any + Send + Sync>;

/// A graph, which ends with the first of its communicators that ends.
pub(super) trait EndsWithCommunicator: Send + Sync {
    /// Takes the graph's executable form, if it is there. Its last owner destroys it.
    ///
    /// No lock of the graph is held once the call has returned.
    fn take(&self) -> Option<Kept>;
}

/// The graphs of one communicator.
#[derive(Default)]
pub(crate) struct Graphs {
    state: Mutex<GraphsState>,
    /// The number of launches so far.
    launches: AtomicU64,
}

#[derive(Default)]
struct GraphsState {
    graphs: Vec<Weak<dyn EndsWithCommunicator>>,
    /// The cause of the end, once the communicator has ended.
    ended: Option<AbortCause>,
}

impl Graphs {
    /// Adds a graph. If the communicator has ended, destroys the graph instead.
    pub(super) fn add(&self, graph: &Weak<dyn EndsWithCommunicator>) {
        let mut state = self.state();
        if state.ended.is_some() {
            drop(state);
            return drop(graph.upgrade().and_then(|graph| graph.take()));
        }
        state.graphs.retain(|graph| graph.strong_count() > 0);
        state.graphs.push(graph.clone());
    }

    /// Makes all later launches fail with this cause. The first cause stays.
    pub(crate) fn forbid(&self, cause: &AbortCause) {
        self.state().ended.get_or_insert_with(|| cause.clone());
    }

    /// Makes all later launches fail with this cause, unless there is one, and takes the executable forms of all graphs.
    /// Their last owners destroy them.
    pub(super) fn take_all(&self, cause: &AbortCause) -> Vec<Kept> {
        self.forbid(cause);
        let graphs = mem::take(&mut self.state().graphs);
        graphs.iter().filter_map(Weak::upgrade).filter_map(|graph| graph.take()).collect()
    }

    pub(super) fn count_launch(&self) {
        self.launches.fetch_add(1, Ordering::Relaxed);
    }

    /// The number of launches so far, equal on all ranks.
    pub(crate) fn launches(&self) -> u64 {
        self.launches.load(Ordering::Relaxed)
    }

    /// Why the communicator has ended, if it has.
    pub(super) fn cause(&self) -> Option<AbortCause> {
        self.state().ended.clone()
    }

    fn state(&self) -> MutexGuard<'_, GraphsState> {
        sync::lock(&self.state)
    }
}

disco_core::format_as!(Debug for Graphs, |it| "<{} graphs>", it.state().graphs.len());
