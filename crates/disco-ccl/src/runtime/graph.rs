//! Graphs, their launches, and their end.
//!
//! The executable form of a graph is in a slot that [`Graph`] and the communicators of its operations share. A
//! communicator that ends takes the executable out of each of its slots, since NCCL ends no communicator before its
//! graphs are destroyed. A call that launches an executable holds a reference: the last reference destroys the
//! executable. `cuGraphExecDestroy` does not wait, and the driver frees an executable after its running launches.

use std::fmt;
use std::mem;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, Weak};

use disco_core::sync;
use disco_core::{AbortCause, Error, Result};

use super::capture::{Kept, Recording};
use super::{Runtime, Teardown};
use crate::driver::{Exec, GraphFunctions};
use crate::heap::Span;

/// Work of a worker's stream that was [captured](Runtime::capture), to be launched any number of times.
///
/// Each launch runs the captured operations on the current contents of their tensors. A graph ends with the first of
/// its communicators that ends: a communicator that is dropped, aborted or broken destroys its graphs first, and later
/// launches fail. Drop does not wait, and running launches complete.
pub struct Graph(Arc<Slot>);

/// Holder of a graph's executable form, shared by the graph and its communicators.
pub(crate) struct Slot {
    /// The first communicator that ends takes the executable out.
    exec: Mutex<Option<Arc<Executable>>>,
    users: Vec<Arc<Graphs>>,
}

/// An executable graph with the owners of its memory.
struct Executable {
    runtime: Arc<Runtime>,
    functions: GraphFunctions,
    exec: Exec,
    /// The memory of tensors is freed in the order of the stream, after all launches.
    _kept: Vec<Kept>,
    spans: Vec<Span>,
}

/// The graphs of one communicator.
#[derive(Default)]
pub(crate) struct Graphs {
    state: Mutex<GraphSlots>,
    /// The number of launches so far.
    launches: AtomicU64,
}

#[derive(Default)]
struct GraphSlots {
    slots: Vec<Weak<Slot>>,
    /// The cause of the end, once the communicator has ended.
    ended: Option<AbortCause>,
}

impl Graph {
    pub(super) fn new(
        runtime: &Arc<Runtime>,
        functions: GraphFunctions,
        exec: Exec,
        recording: Recording,
    ) -> Result<Self> {
        let Recording { kept, spans, users } = recording;
        let ready = Executable { runtime: runtime.clone(), functions, exec, _kept: kept, spans };
        let slot = Arc::new(Slot { exec: Mutex::new(Some(Arc::new(ready))), users });
        slot.users.iter().for_each(|user| user.add(&slot));
        slot.check("capture").map(|()| Self(slot))
    }

    /// Launches the graph on the stream of the capture, behind all earlier work of the stream. Does not wait for the
    /// launch to complete.
    ///
    /// The call makes the device current on the calling thread. All ranks of the graph's communicators launch their
    /// graphs, in the same order relative to other operations. [`synchronize`](disco_core::Communicator::synchronize)
    /// waits for launches, with the same deadline and the same reports as for operations.
    ///
    /// # Errors
    /// [`Error::Broken`] with the cause: a communicator of the operations was dropped or has failed.
    /// [`Error::Deadline`] and [`Error::Aborted`]: a kernel of an earlier launch has failed. [`Error::State`]: the
    /// stream is being captured. Errors of the driver.
    pub fn launch(&self) -> Result<()> {
        const OPERATION: &str = "launch of a graph";
        self.0.check(OPERATION)?;
        let ready = self.0.executable().clone().ok_or_else(|| self.0.broken(OPERATION))?;
        let runtime = &ready.runtime;
        runtime.make_current()?;
        runtime.refuse_in_capture(OPERATION, "a graph can't contain another one: launch it after the capture")?;
        runtime.check()?;
        for user in &self.0.users {
            user.launches.fetch_add(1, Ordering::Relaxed);
        }
        // No lock is held here: `cuGraphLaunch` may block until the stream has room, behind work that only an abort
        // ends.
        ready.functions.launch(&ready.exec, runtime.stream())
    }
}

impl Slot {
    fn executable(&self) -> MutexGuard<'_, Option<Arc<Executable>>> {
        sync::lock(&self.exec)
    }

    /// # Errors
    /// [`Error::Broken`]: a communicator has ended.
    fn check(&self, operation: &str) -> Result<()> {
        if self.users.iter().any(|user| user.cause().is_some()) { Err(self.broken(operation)) } else { Ok(()) }
    }

    fn broken(&self, operation: &str) -> Error {
        let cause = self.users.iter().find_map(|user| user.cause());
        Error::Broken {
            operation: operation.into(),
            cause: cause.unwrap_or_else(|| "the communicator has ended".into()),
        }
    }
}

impl Graphs {
    /// Adds a graph. If the communicator has ended, destroys the graph instead.
    fn add(&self, slot: &Arc<Slot>) {
        let mut state = self.state();
        if state.ended.is_some() {
            drop(state);
            // An abort may wait for the slot's lock, so the executable is dropped after the lock.
            let taken = slot.executable().take();
            return drop(taken);
        }
        state.slots.retain(|slot| slot.strong_count() > 0);
        state.slots.push(Arc::downgrade(slot));
    }

    /// Makes all later launches fail with this cause. The first cause stays.
    pub(crate) fn forbid(&self, cause: &AbortCause) {
        self.state().ended.get_or_insert_with(|| cause.clone());
    }

    /// Destroys all graphs on a separate thread, since the driver may block behind a launch; no thread if there are no
    /// graphs.
    pub(crate) fn destroy_all(&self, runtime: &Arc<Runtime>, cause: &AbortCause) -> Option<Teardown> {
        self.forbid(cause);
        let slots = mem::take(&mut self.state().slots);
        let taken: Vec<_> =
            slots.iter().filter_map(Weak::upgrade).filter_map(|slot| slot.executable().take()).collect();
        (!taken.is_empty()).then(|| Teardown::spawn("the end of graphs", runtime, move || drop(taken)))
    }

    /// The number of launches so far, equal on all ranks.
    pub(crate) fn launches(&self) -> u64 {
        self.launches.load(Ordering::Relaxed)
    }

    fn cause(&self) -> Option<AbortCause> {
        self.state().ended.clone()
    }

    fn state(&self) -> MutexGuard<'_, GraphSlots> {
        sync::lock(&self.state)
    }
}

impl Drop for Executable {
    fn drop(&mut self) {
        let (functions, exec) = (self.functions, &mut self.exec);
        self.runtime.driver().with_current(&mut || functions.destroy(exec));
        mem::take(&mut self.spans).into_iter().for_each(|span| self.runtime.give_back(span));
    }
}

impl fmt::Debug for Graph {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &*self.0.executable() {
            Some(ready) => write!(f, "<graph on {}>", ready.runtime.device()),
            None => f.write_str("<graph that has ended>"),
        }
    }
}

impl fmt::Debug for Graphs {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "<{} graphs>", self.state().slots.len())
    }
}
