//! The driver's functions for captures of a stream and for graphs.

#![allow(unsafe_code)]

use std::ffi::{CStr, c_int, c_ulonglong, c_void};
use std::ptr;

use disco_core::Result;
use disco_dl::Library;

use crate::abi::Stream;

/// The functions, which have the same signatures in CUDA (11.4 or later) and HIP (5.3 or later).
#[derive(Clone, Copy, Debug)]
pub struct GraphFunctions {
    /// `cuStreamBeginCapture(CUstream, CUstreamCaptureMode)`
    begin: unsafe extern "C" fn(Stream, c_int) -> c_int,
    /// `cuStreamEndCapture(CUstream, CUgraph *)`
    end: unsafe extern "C" fn(Stream, *mut GraphHandle) -> c_int,
    /// `cuStreamIsCapturing(CUstream, CUstreamCaptureStatus *)`
    is_capturing: unsafe extern "C" fn(Stream, *mut c_int) -> c_int,
    /// `cuGraphInstantiateWithFlags(CUgraphExec *, CUgraph, unsigned long long flags)`
    instantiate: unsafe extern "C" fn(*mut GraphHandle, GraphHandle, c_ulonglong) -> c_int,
    /// `cuGraphLaunch(CUgraphExec, CUstream)`
    launch: unsafe extern "C" fn(GraphHandle, Stream) -> c_int,
    /// `cuGraphExecDestroy(CUgraphExec)`
    destroy_exec: unsafe extern "C" fn(GraphHandle) -> c_int,
    /// `cuGraphDestroy(CUgraph)`
    destroy: unsafe extern "C" fn(GraphHandle) -> c_int,
    /// The library's names of the functions, in this order.
    names: &'static [&'static CStr; 7],
    /// Converts the code of a function into a result.
    check: fn(&'static CStr, c_int) -> Result<()>,
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
    /// Resolves the functions in a library. `names` has the library's name of each field, in the order of the fields.
    ///
    /// # Errors
    /// The first name that the library lacks.
    ///
    /// # Safety
    /// `names` are the names of CUDA's or HIP's functions for these fields.
    pub unsafe fn resolve(
        library: &Library,
        names: &'static [&'static CStr; 7],
        check: fn(&'static CStr, c_int) -> Result<()>,
    ) -> Result<Self, &'static CStr> {
        macro_rules! function {
            ($at:literal) => {
                // SAFETY: the caller guarantees that the function of this name has the signature of the field.
                unsafe { library.function(names[$at]) }.ok_or(names[$at])?
            };
        }
        Ok(Self {
            begin: function!(0),
            end: function!(1),
            is_capturing: function!(2),
            instantiate: function!(3),
            launch: function!(4),
            destroy_exec: function!(5),
            destroy: function!(6),
            names,
            check,
        })
    }

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

    fn check(&self, function: usize, code: c_int) -> Result<()> {
        (self.check)(self.names[function], code)
    }
}
