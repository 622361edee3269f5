//! Captures of a runtime's stream.

use std::mem;
use std::sync::Arc;

use disco_core::{Error, Result};

use super::Runtime;
use super::captures::Needs;
use super::graph::Graph;
use super::graphs::{Graphs, Kept};
use crate::driver::{Exec, GraphFunctions};
use crate::heap::Span;

/// A running capture. Drop ends the capture and discards its graph.
struct OpenCapture<'a> {
    runtime: &'a Arc<Runtime>,
    functions: GraphFunctions,
    is_over: bool,
}

impl Runtime {
    /// Captures the work that `work` gives to the stream, and runs none of it: operations of communicators on this
    /// device, copies on the device, kernels of the program. Each [launch](Graph::launch) of the graph runs the
    /// captured work.
    ///
    /// The worker's thread makes this call, and the capture is thread-local (`CU_STREAM_CAPTURE_MODE_THREAD_LOCAL`).
    /// The graph keeps the tensors of the operations, and the memory of tensors that are dropped during the capture.
    /// The program keeps all other memory that its own kernels use. All ranks of a communicator capture the same
    /// operations in the same order, and launch their graphs in the same order relative to other graphs and operations.
    ///
    /// A capture refuses work that needs the host or new memory, with an error that names the operation and the reason:
    /// barriers, copies from and to the host, waits, events, allocations, splits, registrations, signals over peers'
    /// memory. Three operations of communicators need memory only at times: an in-place `all_to_all` or `all_to_all_v`
    /// that is larger than all before, and a `cuda_p2p` sum of tensors that do not start at a multiple of 16 bytes. A
    /// refusal changes neither the communicator nor the capture; `work` may go on without the operation.
    ///
    /// # Errors
    /// The errors of `work`; a function that the driver lacks; errors of the driver, also where a call of the program
    /// has ended the capture (`CUDA_ERROR_STREAM_CAPTURE_INVALIDATED`); the stream is being captured already;
    /// [`Error::Broken`]: a communicator of the operations has ended meanwhile.
    pub fn capture(self: &Arc<Self>, work: impl FnOnce() -> Result<()>) -> Result<Graph> {
        let functions = self.captures.functions.clone();
        let functions = functions.map_err(|why| Error::missing(format!("capture: graphs are not available: {why}")))?;
        self.refuse_in_capture("capture", "a second capture can't begin before the first has ended")?;
        self.make_current()?;
        let open = OpenCapture::begin(self, functions)?;
        work()?;
        // User code may have made another device current.
        self.make_current()?;
        open.end()
    }

    /// Whether the stream is being captured, by [`Runtime::capture`] or by the program itself.
    ///
    /// # Errors
    /// Errors of the driver.
    pub fn is_capturing(&self) -> Result<bool> {
        let Ok(functions) = &self.captures.functions else { return Ok(false) };
        let mut is_capturing = Ok(false);
        self.driver().with_current(&mut || is_capturing = functions.is_capturing(self.stream()));
        is_capturing
    }

    /// Refuses an operation while the stream is captured.
    ///
    /// # Errors
    /// [`Error::State`] with the reason; errors of the driver.
    pub(crate) fn refuse_in_capture(&self, operation: &str, why: &str) -> Result<()> {
        if self.is_capturing()? {
            Err(Error::state(format!("{operation}: the stream is being captured; {why}")))
        } else {
            Ok(())
        }
    }

    /// Adds an owner of memory to the graph of a running [`Runtime::capture`].
    pub(crate) fn keep(&self, what: impl FnOnce() -> Kept) {
        if let Some(needs) = &mut self.captures.state().needs {
            needs.kept.push(what());
        }
    }

    /// Adds an operation to the graph of a running [`Runtime::capture`]: the owners of its memory, and the graphs of
    /// its communicator.
    pub(crate) fn record(&self, kept: impl IntoIterator<Item = Kept>, user: &Arc<Graphs>) {
        let mut state = self.captures.state();
        let Some(needs) = &mut state.needs else { return };
        needs.kept.extend(kept);
        if !needs.users.iter().any(|known| Arc::ptr_eq(known, user)) {
            needs.users.push(user.clone());
        }
    }

    /// Queries the stream. A stream that is being captured counts as busy, since a query would invalidate the capture.
    pub(crate) fn query_idle(&self, is_idle: impl FnOnce() -> Result<bool>) -> Result<bool> {
        // Another thread that holds the lock may be in a free, which waits for the stream.
        let Some(state) = self.captures.try_state() else { return Ok(false) };
        if state.needs.is_some() || self.is_capturing()? {
            return Ok(false);
        }
        let answer = is_idle();
        drop(state);
        answer
    }

    /// Takes back memory of a tensor. Keeps the memory during a capture, since a free on the stream would become part
    /// of the graph.
    pub(crate) fn give_back(&self, span: Span) {
        let mut state = self.captures.state();
        if let Some(needs) = &mut state.needs {
            needs.spans.push(span);
        } else if self.is_capturing().unwrap_or(false) {
            state.deferred.push(span);
        } else {
            let deferred = mem::take(&mut state.deferred);
            deferred.into_iter().chain([span]).for_each(|span| self.heap.give_back(self.driver(), span));
        }
    }

    /// Frees the memory that earlier captures have deferred. No capture is running.
    pub(crate) fn give_back_deferred(&self) {
        let deferred = mem::take(&mut self.captures.state().deferred);
        deferred.into_iter().for_each(|span| self.heap.give_back(self.driver(), span));
    }
}

impl<'a> OpenCapture<'a> {
    fn begin(runtime: &'a Arc<Runtime>, functions: GraphFunctions) -> Result<Self> {
        runtime.captures.state().needs = Some(Needs::default());
        // Drop removes the needs.
        let mut open = Self { runtime, functions, is_over: true };
        functions.begin(runtime.stream())?;
        open.is_over = false;
        Ok(open)
    }

    fn end(mut self) -> Result<Graph> {
        let exec = self.end_capture()?;
        let needs = self.runtime.captures.state().needs.take().unwrap_or_default();
        Graph::new(self.runtime, self.functions, exec, needs)
    }

    fn end_capture(&mut self) -> Result<Exec> {
        self.is_over = true;
        self.functions.end(self.runtime.stream())
    }
}

impl Drop for OpenCapture<'_> {
    fn drop(&mut self) {
        if !self.is_over {
            let runtime = self.runtime;
            runtime.driver().with_current(&mut || match self.end_capture() {
                Ok(mut exec) => self.functions.destroy(&mut exec),
                Err(error) => tracing::debug!(%error, "a capture has failed"),
            });
        }
        let needs = self.runtime.captures.state().needs.take();
        if let Some(Needs { spans, .. }) = needs {
            spans.into_iter().for_each(|span| self.runtime.give_back(span));
        }
    }
}
