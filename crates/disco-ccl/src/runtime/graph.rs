//! A graph, its launches, and its end.
//!
//! The executable form of a graph is in a slot that [`Graph`] and the communicators of its operations share. A call that
//! launches an executable holds a reference: the last reference destroys the executable. `cuGraphExecDestroy` does not
//! wait, and the driver frees an executable after its running launches.

use std::fmt;
use std::mem;
use std::sync::{Arc, Mutex, MutexGuard, Weak};

use disco_core::sync;
use disco_core::{Error, Result};

use super::Runtime;
use super::captures::Needs;
use super::graphs::{EndsWithCommunicator, Graphs, Kept};
use crate::driver::{Exec, GraphFunctions};
use crate::heap::Span;

/// Work of a worker's stream that was [captured](Runtime::capture), to be launched any number of times.
///
/// Each launch runs the captured operations on the current contents of their tensors. A graph ends with the first of
/// its communicators that ends: a communicator that is dropped, aborted or broken destroys its graphs first, and later
/// launches fail. Drop does not wait, and running launches complete.
pub struct Graph(Arc<Slot>);

/// Holder of a graph's executable form, shared by the graph and its communicators.
struct Slot {
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

impl Graph {
    pub(super) fn new(runtime: &Arc<Runtime>, functions: GraphFunctions, exec: Exec, needs: Needs) -> Result<Self> {
        let Needs { kept, spans, users } = needs;
        let ready = Executable { runtime: runtime.clone(), functions, exec, _kept: kept, spans };
        let slot = Arc::new(Slot { exec: Mutex::new(Some(Arc::new(ready))), users });
        let shared = Arc::downgrade(&slot) as Weak<dyn EndsWithCommunicator>;
        slot.users.iter().for_each(|user| user.add(&shared));
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
            user.count_launch();
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

impl EndsWithCommunicator for Slot {
    fn take(&self) -> Option<Kept> {
        self.executable().take().map(|ready| ready as Kept)
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
