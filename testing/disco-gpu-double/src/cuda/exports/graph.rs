//! Captures of streams, and graphs.

#![allow(unsafe_code, reason = "C functions")]

use std::ffi::{c_int, c_ulonglong};
use std::ptr;

use super::write_output;
use crate::cuda::abi::{Code, Graph, GraphExec, Stream};
use crate::cuda::capture::{self, Mode};
use crate::cuda::stream::{self, PER_THREAD};
use crate::cuda::{device, graph};

/// `CUresult cuStreamBeginCapture_v2(CUstream, CUstreamCaptureMode)`: any stream except the default stream.
#[unsafe(no_mangle)]
pub extern "C" fn cuStreamBeginCapture_v2(stream: Stream, mode: c_int) -> Code {
    Code::of(device::begin_call("cuStreamBeginCapture_v2").and_then(|_| begin(stream, mode)))
}

/// `CUresult cuStreamEndCapture(CUstream, CUgraph *graph)`: null if the capture was invalidated.
#[unsafe(no_mangle)]
pub extern "C" fn cuStreamEndCapture(stream: Stream, at: Option<&mut Graph>) -> Code {
    Code::of(device::begin_release_call("cuStreamEndCapture").and_then(|_| end(stream, at)))
}

/// `CUresult cuStreamIsCapturing(CUstream, CUstreamCaptureStatus *)`: 0 no, 1 yes, 2 the capture was invalidated.
#[unsafe(no_mangle)]
pub extern "C" fn cuStreamIsCapturing(stream: Stream, status: Option<&mut c_int>) -> Code {
    Code::of(device::current().and_then(|_| write_output(status, status_of(stream)?)))
}

/// `CUresult cuGraphInstantiateWithFlags(CUgraphExec *, CUgraph, unsigned long long flags)`: flags must be 0.
#[unsafe(no_mangle)]
pub extern "C" fn cuGraphInstantiateWithFlags(at: Option<&mut GraphExec>, graph: Graph, flags: c_ulonglong) -> Code {
    let device = device::begin_call("cuGraphInstantiateWithFlags");
    Code::of(device.and_then(|_| instantiate(at, graph, flags)))
}

/// `CUresult cuGraphUpload(CUgraphExec, CUstream)`: checks its arguments only.
#[unsafe(no_mangle)]
pub extern "C" fn cuGraphUpload(exec: GraphExec, stream: Stream) -> Code {
    Code::of(device::begin_call("cuGraphUpload").and_then(|device| {
        stream::find(stream, device)?;
        graph::find(exec).map(drop)
    }))
}

/// `CUresult cuGraphLaunch(CUgraphExec, CUstream)`
#[unsafe(no_mangle)]
pub extern "C" fn cuGraphLaunch(exec: GraphExec, stream: Stream) -> Code {
    let device = device::begin_call("cuGraphLaunch");
    Code::of(device.and_then(|device| graph::launch(exec, &*stream::find(stream, device)?)))
}

/// `CUresult cuGraphExecDestroy(CUgraphExec)`: does not wait; running launches complete. Succeeds also on a failed
/// device.
#[unsafe(no_mangle)]
pub extern "C" fn cuGraphExecDestroy(exec: GraphExec) -> Code {
    Code::of(graph::destroy_exec(exec))
}

/// `CUresult cuGraphDestroy(CUgraph)`
#[unsafe(no_mangle)]
pub extern "C" fn cuGraphDestroy(graph: Graph) -> Code {
    Code::of(graph::destroy(graph))
}

pub(crate) fn begin(handle: Stream, mode: c_int) -> Result<(), Code> {
    let mode = Mode::of(mode)?;
    let stream = stream::of_handle(handle).map_err(|code| {
        // Every device has a default stream, which can't be captured.
        if handle.addr() <= PER_THREAD { Code::STREAM_CAPTURE_UNSUPPORTED } else { code }
    })?;
    capture::begin(&stream, mode)
}

pub(crate) fn end(handle: Stream, at: Option<&mut Graph>) -> Result<(), Code> {
    let at = at.ok_or(Code::INVALID_VALUE)?;
    *at = ptr::null_mut();
    *at = graph::insert(capture::end(&*stream::of_handle(handle)?)?);
    Ok(())
}

pub(crate) fn status_of(handle: Stream) -> Result<c_int, Code> {
    if handle.addr() <= PER_THREAD {
        return Ok(0);
    }
    let capture = stream::of_handle(handle)?.capture.current();
    Ok(capture.map_or(0, |capture| 1 + c_int::from(capture.is_invalid())))
}

pub(crate) fn instantiate(at: Option<&mut GraphExec>, graph: Graph, flags: c_ulonglong) -> Result<(), Code> {
    if flags != 0 {
        return Err(Code::INVALID_VALUE);
    }
    write_output(at, graph::instantiate(graph)?)
}
