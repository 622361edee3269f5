//! Streams.

#![allow(unsafe_code, reason = "C functions")]

use std::ffi::{c_int, c_uint};

use crate::cuda::abi::{self, Code, STREAM_NON_BLOCKING, Stream};
use crate::cuda::{device, event, stream};
use crate::settings;

/// The least priority, which is the default, and the greatest priority, as on an H100.
const PRIORITIES: [c_int; 2] = [0, -5];

/// `CUresult cuStreamCreate(CUstream *stream, unsigned int flags)`
#[unsafe(no_mangle)]
pub extern "C" fn cuStreamCreate(at: Option<&mut Stream>, flags: c_uint) -> Code {
    let Some(at) = at.filter(|_| flags & !STREAM_NON_BLOCKING == 0) else { return Code::INVALID_VALUE };
    let queues = settings::read().cuda_queues();
    Code::of(device::begin_call("cuStreamCreate").map(|device| *at = stream::create(device, flags == 0, queues)))
}

/// `CUresult cuStreamCreateWithPriority(CUstream *stream, unsigned int flags, int priority)`: lower numbers are greater
/// priorities; numbers outside of the range are clamped. A stream with a priority above the default has its own
/// hardware queue; otherwise the priority has no effect.
#[unsafe(no_mangle)]
pub extern "C" fn cuStreamCreateWithPriority(at: Option<&mut Stream>, flags: c_uint, priority: c_int) -> Code {
    let Some(at) = at.filter(|_| flags & !STREAM_NON_BLOCKING == 0) else { return Code::INVALID_VALUE };
    Code::of(device::begin_call("cuStreamCreateWithPriority").map(|device| {
        *at = stream::create_with(device, flags == 0, priority, settings::read().cuda_queues());
    }))
}

/// `CUresult cuCtxGetStreamPriorityRange(int *least, int *greatest)`: either pointer may be null.
#[unsafe(no_mangle)]
pub extern "C" fn cuCtxGetStreamPriorityRange(least: Option<&mut c_int>, greatest: Option<&mut c_int>) -> Code {
    Code::of(device::begin_call("cuCtxGetStreamPriorityRange").map(|_| {
        let places = [least, greatest].into_iter().zip(stream::priorities(PRIORITIES));
        places.for_each(|(at, priority)| at.into_iter().for_each(|at| *at = priority));
    }))
}

/// `CUresult cuStreamDestroy_v2(CUstream)`: does not wait. Also destroys the stream if its device has failed.
#[unsafe(no_mangle)]
pub extern "C" fn cuStreamDestroy_v2(stream: Stream) -> Code {
    Code::of(device::current().and_then(|device| stream::destroy(stream).and_then(|()| device.check())))
}

/// `CUresult cuStreamQuery(CUstream)`
#[unsafe(no_mangle)]
pub extern "C" fn cuStreamQuery(stream: Stream) -> Code {
    Code::of(device::begin_call("cuStreamQuery").and_then(|device| stream::find(stream, device)?.query()))
}

/// `CUresult cuStreamSynchronize(CUstream)`
#[unsafe(no_mangle)]
pub extern "C" fn cuStreamSynchronize(stream: Stream) -> Code {
    Code::of(device::begin_call("cuStreamSynchronize").and_then(|device| stream::find(stream, device)?.finish()))
}

/// `CUresult cuStreamWaitEvent(CUstream, CUevent, unsigned int flags)`
#[unsafe(no_mangle)]
pub extern "C" fn cuStreamWaitEvent(stream: Stream, event: abi::Event, flags: c_uint) -> Code {
    if flags > 1 {
        return Code::INVALID_VALUE;
    }
    Code::of(device::begin_call("cuStreamWaitEvent").and_then(|device| {
        let stream = stream::find(stream, device)?;
        event::find(event)?.make_wait(&stream)
    }))
}
