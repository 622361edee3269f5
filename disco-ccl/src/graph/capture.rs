//! What a runtime knows of captures of its stream, and what is refused while there is one.

use std::any::Any;
use std::fmt;
use std::mem;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use disco_core::tensor::Storage;
use disco_core::{Error, Op, Result};

use super::functions::{Exec, GraphFunctions};
use super::replay::{Graph, Graphs};
use crate::collective;
use crate::heap::Span;
use crate::p2p::Shortcut;
use crate::runtime::Runtime;

/// What a graph needs for as long as it can be launched.
pub(crate) type Kept = Arc<dyn Any + Send + Sync>;

/// Captures of one stream.
pub(crate) struct Captures {
    /// Or why there are none.
    functions: Result<GraphFunctions, String>,
    /// Locked where the driver is asked for the stream, or gets memory back in its order, so that no capture begins meanwhile.
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// A capture by [`Runtime::capture`].
    recording: Option<Recording>,
    /// Memory that tensors gave back during a capture by the program.
    deferred: Vec<Span>,
}

/// What a capture has come to need.
#[derive(Default)]
pub(super) struct Recording {
    pub(super) kept: Vec<Kept>,
    /// Memory of tensors that were dropped meanwhile: work that was captured may have it.
    pub(super) spans: Vec<Span>,
    /// The communicators whose operations were captured.
    pub(super) users: Vec<Arc<Graphs>>,
}

/// A communicator, in what concerns captures.
pub(crate) struct Place<'a> {
    pub(crate) runtime: &'a Runtime,
    pub(crate) graphs: &'a Arc<Graphs>,
    pub(crate) scratch: &'a Arc<Storage>,
    pub(crate) shortcut: Option<&'a Shortcut>,
}

/// A capture that is under way. Dropped, it is ended, and nothing comes of it.
struct Open<'a> {
    runtime: &'a Arc<Runtime>,
    functions: GraphFunctions,
    is_over: bool,
}

impl Captures {
    /// By these functions, or why there are none.
    pub(crate) fn new(functions: Result<GraphFunctions, String>) -> Self {
        Self { functions, state: Mutex::default() }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Runtime {
    /// Captures what `work` gives to the stream, in place of doing it: operations of communicators on this device, copies on the device,
    /// kernels of the program. The graph does it at each [launch](Graph::launch).
    ///
    /// The calling thread is the worker's. The capture is a thread-local one (`CU_STREAM_CAPTURE_MODE_THREAD_LOCAL`). The graph keeps the
    /// tensors of the operations, and the memory of tensors that are dropped during the capture; of other memory that the program's own
    /// kernels use, the program keeps the owner. All ranks of a communicator capture the same operations in the same order, and launch
    /// their graphs in the same order among each other and among other operations.
    ///
    /// Work that needs the host can't be captured and is refused with an error that names the operation and the reason: barriers, copies
    /// from and to the host, waits, events, allocations (`empty`, an in-place `all_to_all` that needs more scratch memory than was needed
    /// before, a `cuda_p2p` sum of tensors that do not start at a multiple of 16 bytes), splits, registrations, signals of peers' memory. Such a
    /// refusal leaves the communicator and the capture as they are; `work` may go on without the operation.
    ///
    /// # Errors
    /// Those of `work`; the driver lacks a function, or has ended the capture (`CUDA_ERROR_STREAM_CAPTURE_INVALIDATED`); the stream is
    /// being captured already; [`Error::Broken`], a communicator has ended meanwhile.
    pub fn capture(self: &Arc<Self>, work: impl FnOnce() -> Result<()>) -> Result<Graph> {
        let functions = self.captures.functions.clone();
        let functions = functions.map_err(|why| Error::invalid(format!("capture: there are no graphs: {why}")))?;
        self.refuse_in_capture("capture", "a second capture can't begin before the first has ended")?;
        self.enter()?;
        let open = Open::begin(self, functions)?;
        work()?;
        // User code may have made another device current.
        self.enter()?;
        open.end()
    }

    /// Whether work of the stream becomes part of a graph, of this runtime's or of the program's own.
    ///
    /// # Errors
    /// The driver's own.
    pub fn is_capturing(&self) -> Result<bool> {
        let Ok(functions) = &self.captures.functions else { return Ok(false) };
        let mut is_capturing = Ok(false);
        self.driver().visit(&mut || is_capturing = functions.is_capturing(self.stream()));
        is_capturing
    }

    /// Refuses an operation while the stream is captured.
    ///
    /// # Errors
    /// [`Error::Invalid`] with the reason; the driver's own.
    pub(crate) fn refuse_in_capture(&self, operation: &str, why: &str) -> Result<()> {
        match self.is_capturing()? {
            true => Err(Error::invalid(format!("{operation}: the stream is being captured; {why}"))),
            false => Ok(()),
        }
    }

    /// Has the graph that is captured, if there is one, keep something.
    pub(crate) fn keep(&self, what: impl FnOnce() -> Kept) {
        if let Some(recording) = &mut self.captures.state().recording {
            recording.kept.push(what());
        }
    }

    /// Asks for the stream. While it is captured it is not idle: the driver would end the capture.
    pub(crate) fn ask(&self, is_idle: impl FnOnce() -> Result<bool>) -> Result<bool> {
        let state = self.captures.state();
        if state.recording.is_some() || self.is_capturing()? {
            return Ok(false);
        }
        let answer = is_idle();
        drop(state);
        answer
    }

    /// Takes back memory of a tensor. During a capture it is kept: the driver would make the free a part of the graph.
    pub(crate) fn give_back(&self, span: Span) {
        let mut state = self.captures.state();
        if let Some(recording) = &mut state.recording {
            recording.spans.push(span);
        } else if self.is_capturing().unwrap_or(false) {
            state.deferred.push(span);
        } else {
            let deferred = mem::take(&mut state.deferred);
            deferred.into_iter().chain([span]).for_each(|span| self.heap.give_back(self.driver(), span));
        }
    }

    /// Takes back what was deferred. There is no capture any more.
    pub(crate) fn give_back_deferred(&self) {
        let deferred = mem::take(&mut self.captures.state().deferred);
        deferred.into_iter().for_each(|span| self.heap.give_back(self.driver(), span));
    }
}

impl Place<'_> {
    /// Where the stream is captured: refuses operations that can't be, and has the graph keep what the others need.
    ///
    /// # Errors
    /// [`Error::Invalid`] with the reason.
    pub(crate) fn check(&self, group: &[Op], is_scaled: bool) -> Result<()> {
        // Where the driver can't be asked, the launch fails, and says why.
        if !self.runtime.is_capturing().unwrap_or(false) {
            return Ok(());
        }
        let refuse = |op: &Op, why: String| {
            let kind = op.kind();
            Err(Error::invalid(format!("{kind}: the stream is being captured; {why}")))
        };
        for op in group {
            let (needed, there) = (collective::scratch(op), self.scratch.byte_len());
            if matches!(op, Op::Barrier) {
                return refuse(
                    op,
                    "a barrier has the host wait, and nothing of a graph is done before its launch".into(),
                );
            }
            if needed > there {
                return refuse(
                    op,
                    format!(
                        "in place it needs {needed} bytes of scratch memory, of which there are {there}: do it once before the capture"
                    ),
                );
            }
        }
        if let ([op], false, Some(shortcut)) = (group, is_scaled, self.shortcut)
            && shortcut.needs_room(op)
        {
            let why = "a tensor that does not start at a multiple of 16 bytes is copied aside, into new memory";
            return refuse(op, why.into());
        }
        let mut state = self.runtime.captures.state();
        let Some(recording) = &mut state.recording else { return Ok(()) };
        let tensors = group.iter().flat_map(|op| [op.src(), op.dst()]).flatten();
        recording.kept.extend(tensors.map(|tensor| tensor.storage().clone() as Kept));
        recording.kept.push(self.scratch.clone());
        recording.kept.extend(self.shortcut.and_then(Shortcut::keeper));
        if !recording.users.iter().any(|user| Arc::ptr_eq(user, self.graphs)) {
            recording.users.push(self.graphs.clone());
        }
        Ok(())
    }
}

impl<'a> Open<'a> {
    fn begin(runtime: &'a Arc<Runtime>, functions: GraphFunctions) -> Result<Self> {
        runtime.captures.state().recording = Some(Recording::default());
        // Dropped, it takes the recording out again.
        let mut open = Self { runtime, functions, is_over: true };
        functions.begin(runtime.stream())?;
        open.is_over = false;
        Ok(open)
    }

    fn end(mut self) -> Result<Graph> {
        let exec = self.end_capture()?;
        let recording = self.runtime.captures.state().recording.take().unwrap_or_default();
        Graph::new(self.runtime, self.functions, exec, recording)
    }

    fn end_capture(&mut self) -> Result<Exec> {
        self.is_over = true;
        self.functions.end(self.runtime.stream())
    }
}

impl Drop for Open<'_> {
    fn drop(&mut self) {
        if !self.is_over {
            let runtime = self.runtime;
            runtime.driver().visit(&mut || match self.end_capture() {
                Ok(mut exec) => self.functions.destroy(&mut exec),
                Err(error) => tracing::debug!(%error, "a capture has failed"),
            });
        }
        let recording = self.runtime.captures.state().recording.take();
        if let Some(Recording { spans, .. }) = recording {
            spans.into_iter().for_each(|span| self.runtime.give_back(span));
        }
    }
}

impl fmt::Debug for Captures {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.state().recording.is_some() { "<a capture>" } else { "<no capture>" })
    }
}
