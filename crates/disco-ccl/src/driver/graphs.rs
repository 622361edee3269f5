//! The driver's functions for captures of a stream and for graphs.

#![allow(unsafe_code)]

use std::ffi::{c_int, c_ulonglong, c_void};
use std::ptr;

use disco_core::Result;

use crate::abi::Stream;
use crate::driver_table::functions;

functions! {
    /// The functions, which have the same signatures in CUDA (11.4 or later) and HIP (5.3 or later).
    pub struct GraphFunctions[7] {
        /// `cuStreamBeginCapture(CUstream, CUstreamCaptureMode)`
        0 begin: fn(Stream, c_int);
        /// `cuStreamEndCapture(CUstream, CUgraph *)`
        1 end: fn(Stream, *mut GraphHandle);
        /// `cuStreamIsCapturing(CUstream, CUstreamCaptureStatus *)`
        2 is_capturing: fn(Stream, *mut c_int);
        /// `cuGraphInstantiateWithFlags(CUgraphExec *, CUgraph, unsigned long long flags)`
        3 instantiate: fn(*mut GraphHandle, GraphHandle, c_ulonglong);
        /// `cuGraphLaunch(CUgraphExec, CUstream)`
        4 launch: fn(GraphHandle, Stream);
        /// `cuGraphExecDestroy(CUgraphExec)`
        5 destroy_exec: fn(GraphHandle);
        /// `cuGraphDestroy(CUgraph)`
        6 destroy: fn(GraphHandle);
    }
}

/// `CUgraph`, `CUgraphExec`, `hipGraph_t`, `hipGraphExec_t`
type GraphHandle = *mut c_void;

/// A graph that can be launched. Its calls are made with the device current.
#[derive(Debug)]
pub(crate) struct Exec(GraphHandle);

// SAFETY: the driver takes an executable graph on any thread.
unsafe impl Send for Exec {}
// SAFETY: `&Exec` allows launches only, which the driver accepts from several threads at a time.
unsafe impl Sync for Exec {}

/// `CU_STREAM_CAPTURE_MODE_THREAD_LOCAL`: calls of other threads do not concern the capture.
const THREAD_LOCAL: c_int = 1;

impl GraphFunctions {
    /// Begins a thread-local capture of a stream, which exists.
    ///
    /// # Errors
    /// Errors of the driver.
    pub(crate) fn begin(&self, stream: Stream) -> Result<()> {
        // SAFETY: the caller's stream exists.
        self.check(0, unsafe { (self.begin)(stream, THREAD_LOCAL) })
    }

    /// Ends a capture that this thread has begun, and returns its graph, ready for launches.
    pub(crate) fn end(&self, stream: Stream) -> Result<Exec> {
        let (mut graph, mut exec) = (ptr::null_mut(), ptr::null_mut());
        // SAFETY: the caller's stream exists, and `graph` is a valid output.
        self.check(1, unsafe { (self.end)(stream, &mut graph) })?;
        // SAFETY: the driver has just made the graph, and `exec` is a valid output; 0 means no flags.
        let made = self.check(3, unsafe { (self.instantiate)(&mut exec, graph, 0) });
        // SAFETY: the graph exists and is destroyed once. Its executable does not refer to it.
        if let Err(error) = self.check(6, unsafe { (self.destroy)(graph) }) {
            tracing::warn!(%error, "a graph can't be destroyed and is leaked");
        }
        made.map(|()| Exec(exec))
    }

    /// Whether a stream, which exists, is being captured. An invalidated capture counts.
    pub(crate) fn is_capturing(&self, stream: Stream) -> Result<bool> {
        let mut status = 0;
        // SAFETY: the caller's stream exists, and `status` is a valid output.
        self.check(2, unsafe { (self.is_capturing)(stream, &mut status) }).map(|()| status != 0)
    }

    /// Launches a graph on a stream, which exists. The memory of the graph stays until the stream has done the launch.
    pub(crate) fn launch(&self, exec: &Exec, stream: Stream) -> Result<()> {
        // SAFETY: the borrowed executable is not destroyed, and the caller's stream exists.
        self.check(4, unsafe { (self.launch)(exec.0, stream) })
    }

    /// Destroys an executable, once. Does not wait: the driver frees the executable after its running launches.
    pub(crate) fn destroy(&self, exec: &mut Exec) {
        // SAFETY: the executable exists, and its owner, which is being dropped, destroys it once.
        if let Err(error) = self.check(5, unsafe { (self.destroy_exec)(exec.0) }) {
            tracing::warn!(%error, "a graph can't be destroyed and is leaked");
        }
    }
}
