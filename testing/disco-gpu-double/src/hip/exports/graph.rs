//! Captures of streams, and graphs: see [`crate::cuda::exports::graph`].

#![allow(unsafe_code, reason = "C functions")]

use std::ffi::{c_int, c_ulonglong};

use super::write_output;
use crate::cuda::abi::{Graph, GraphExec};
use crate::cuda::exports::graph::{begin, end, instantiate, status_of};
use crate::cuda::{graph, stream};
use crate::hip::abi::{Code, Stream};
use crate::hip::{current, last};

/// `hipError_t hipStreamBeginCapture(hipStream_t, hipStreamCaptureMode)`: any stream except the default stream.
#[unsafe(no_mangle)]
pub extern "C" fn hipStreamBeginCapture(stream: Stream, mode: c_int) -> Code {
    last::note(current::begin_call("hipStreamBeginCapture").and_then(|_| Ok(begin(stream, mode)?)))
}

/// `hipError_t hipStreamEndCapture(hipStream_t, hipGraph_t *graph)`: null if the capture was invalidated.
#[unsafe(no_mangle)]
pub extern "C" fn hipStreamEndCapture(stream: Stream, at: Option<&mut Graph>) -> Code {
    last::note(current::begin_release_call("hipStreamEndCapture").and_then(|_| Ok(end(stream, at)?)))
}

/// `hipError_t hipStreamIsCapturing(hipStream_t, hipStreamCaptureStatus *)`: 0 no, 1 yes, 2 the capture was
/// invalidated.
#[unsafe(no_mangle)]
pub extern "C" fn hipStreamIsCapturing(stream: Stream, status: Option<&mut c_int>) -> Code {
    last::note(current::current().and_then(|_| write_output(status, status_of(stream)?)))
}

/// `hipError_t hipGraphInstantiateWithFlags(hipGraphExec_t *, hipGraph_t, unsigned long long flags)`: flags must be 0.
#[unsafe(no_mangle)]
pub extern "C" fn hipGraphInstantiateWithFlags(at: Option<&mut GraphExec>, graph: Graph, flags: c_ulonglong) -> Code {
    let device = current::begin_call("hipGraphInstantiateWithFlags");
    last::note(device.and_then(|_| Ok(instantiate(at, graph, flags)?)))
}

/// `hipError_t hipGraphLaunch(hipGraphExec_t, hipStream_t)`
#[unsafe(no_mangle)]
pub extern "C" fn hipGraphLaunch(exec: GraphExec, stream: Stream) -> Code {
    let device = current::begin_call("hipGraphLaunch");
    last::note(device.and_then(|device| Ok(graph::launch(exec, &*stream::find(stream, device)?)?)))
}

/// `hipError_t hipGraphExecDestroy(hipGraphExec_t)`: does not wait; running launches complete.
#[unsafe(no_mangle)]
pub extern "C" fn hipGraphExecDestroy(exec: GraphExec) -> Code {
    last::note(graph::destroy_exec(exec).map_err(Code::from))
}

/// `hipError_t hipGraphDestroy(hipGraph_t)`
#[unsafe(no_mangle)]
pub extern "C" fn hipGraphDestroy(graph: Graph) -> Code {
    last::note(graph::destroy(graph).map_err(Code::from))
}
