//! A graph, its launches, and its end.

use std::fmt;
use std::mem;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use disco_core::{Error, Result};

use super::capture::{Kept, Recording};
use super::functions::{Exec, GraphFunctions};
use crate::ending::Ending;
use crate::heap::Span;
use crate::runtime::Runtime;

/// Work of a worker's stream that was [captured](Runtime::capture), to be launched any number of times.
///
/// Each launch does the captured operations again, with what their tensors have then. It ends with the first of its communicators that
/// ends: one that is dropped, aborted or broken destroys its graphs first, and launches fail from then on. Dropping it waits for nothing;
/// launches that are under way are done.
pub struct Graph(Arc<Slot>);

/// Where a graph's executable form is, for its owner and for the communicators that end it.
pub(crate) struct Slot {
    /// Taken out by the first communicator that ends.
    exec: Mutex<Option<Arc<Ready>>>,
    users: Vec<Arc<Graphs>>,
}

/// What can be launched, with what it needs. Dropped when no call launches it; the driver destroys it when its launches are done.
struct Ready {
    runtime: Arc<Runtime>,
    functions: GraphFunctions,
    exec: Exec,
    /// Dropped behind the launches, since the memory of tensors is freed in the order of the stream.
    _kept: Vec<Kept>,
    spans: Vec<Span>,
}

/// The graphs of one communicator.
#[derive(Default)]
pub(crate) struct Graphs {
    state: Mutex<State>,
    /// Launches of them so far.
    launches: AtomicU64,
}

#[derive(Default)]
struct State {
    slots: Vec<Weak<Slot>>,
    /// Why none is launched any more.
    ended: Option<Arc<str>>,
}

impl Graph {
    pub(super) fn new(
        runtime: &Arc<Runtime>,
        functions: GraphFunctions,
        exec: Exec,
        recording: Recording,
    ) -> Result<Self> {
        let Recording { kept, spans, users } = recording;
        let ready = Ready { runtime: runtime.clone(), functions, exec, _kept: kept, spans };
        let slot = Arc::new(Slot { exec: Mutex::new(Some(Arc::new(ready))), users });
        slot.users.iter().for_each(|user| user.add(&slot));
        slot.check("capture").map(|()| Self(slot))
    }

    /// Launches it on the stream that it was captured on: it is done after all that the stream was given before. Does not wait for that.
    ///
    /// The device is the calling thread's current one from then on. All ranks of its communicators launch their graphs, in the same order
    /// among their other operations. [`synchronize`](disco_core::Communicator::synchronize) waits for launches, with the deadline and the
    /// reports of operations.
    ///
    /// # Errors
    /// [`Error::Broken`]: a communicator of its operations was dropped, or has failed, with the cause; a kernel of an earlier launch has
    /// failed; the stream is being captured; the driver's own.
    pub fn launch(&self) -> Result<()> {
        const OPERATION: &str = "launch of a graph";
        self.0.check(OPERATION)?;
        let ready = self.0.place().clone().ok_or_else(|| self.0.broken(OPERATION))?;
        let runtime = &ready.runtime;
        runtime.enter()?;
        runtime.refuse_in_capture(OPERATION, "a graph is no part of another")?;
        runtime.check()?;
        for user in &self.0.users {
            user.launches.fetch_add(1, Ordering::Relaxed);
        }
        // No lock is held: the driver may wait for room, behind work that an abort has to end first.
        ready.functions.launch(&ready.exec, runtime.stream())
    }
}

impl Slot {
    fn place(&self) -> MutexGuard<'_, Option<Arc<Ready>>> {
        self.exec.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// # Errors
    /// [`Error::Broken`]: a communicator has ended.
    fn check(&self, operation: &str) -> Result<()> {
        if self.users.iter().any(|user| user.cause().is_some()) { Err(self.broken(operation)) } else { Ok(()) }
    }

    fn broken(&self, operation: &str) -> Error {
        let cause = self.users.iter().find_map(|user| user.cause());
        Error::Broken { operation: operation.into(), cause: cause.unwrap_or_else(|| "it has ended".into()) }
    }
}

impl Graphs {
    /// One more. A communicator that has ended meanwhile takes it at once.
    fn add(&self, slot: &Arc<Slot>) {
        let mut state = self.state();
        if state.ended.is_some() {
            drop(state);
            // Not under the slot's lock, for which an abort may wait.
            let taken = slot.place().take();
            return drop(taken);
        }
        state.slots.retain(|slot| slot.strong_count() > 0);
        state.slots.push(Arc::downgrade(slot));
    }

    /// None of them is launched any more. The first cause stays.
    pub(crate) fn forbid(&self, cause: &Arc<str>) {
        self.state().ended.get_or_insert_with(|| cause.clone());
    }

    /// Destroys all of them, on a thread of its own, since the driver may be busy with a launch; none where there are none.
    pub(crate) fn end(&self, runtime: &Arc<Runtime>, cause: &Arc<str>) -> Option<Ending> {
        self.forbid(cause);
        let slots = mem::take(&mut self.state().slots);
        let taken: Vec<_> = slots.iter().filter_map(Weak::upgrade).filter_map(|slot| slot.place().take()).collect();
        (!taken.is_empty()).then(|| Ending::spawn("the end of graphs", runtime, move || drop(taken)))
    }

    /// Launches of its graphs so far: alike on all ranks.
    pub(crate) fn launches(&self) -> u64 {
        self.launches.load(Ordering::Relaxed)
    }

    fn cause(&self) -> Option<Arc<str>> {
        self.state().ended.clone()
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Ready {
    fn drop(&mut self) {
        let (functions, exec) = (self.functions, &mut self.exec);
        self.runtime.driver().visit(&mut || functions.destroy(exec));
        mem::take(&mut self.spans).into_iter().for_each(|span| self.runtime.give_back(span));
    }
}

impl fmt::Debug for Graph {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &*self.0.place() {
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
