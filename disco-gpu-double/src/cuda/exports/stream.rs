//! Streams.

#![allow(unsafe_code, reason = "C functions")]

use std::ffi::c_uint;

use crate::cuda::abi::{self, Code, STREAM_NON_BLOCKING, Stream};
use crate::cuda::{device, event, stream};

/// `CUresult cuStreamCreate(CUstream *stream, unsigned int flags)`
#[unsafe(no_mangle)]
pub extern "C" fn cuStreamCreate(at: Option<&mut Stream>, flags: c_uint) -> Code {
    let Some(at) = at.filter(|_| flags & !STREAM_NON_BLOCKING == 0) else { return Code::INVALID_VALUE };
    Code::of(device::enter("cuStreamCreate").map(|device| *at = stream::create(device, flags == 0)))
}

/// `CUresult cuStreamDestroy_v2(CUstream)`: does not wait. The stream is gone even if its device has failed.
#[unsafe(no_mangle)]
pub extern "C" fn cuStreamDestroy_v2(stream: Stream) -> Code {
    Code::of(device::current().and_then(|device| stream::destroy(stream).and_then(|()| device.check())))
}

/// `CUresult cuStreamQuery(CUstream)`
#[unsafe(no_mangle)]
pub extern "C" fn cuStreamQuery(stream: Stream) -> Code {
    Code::of(device::enter("cuStreamQuery").and_then(|device| stream::find(stream, device)?.query()))
}

/// `CUresult cuStreamSynchronize(CUstream)`
#[unsafe(no_mangle)]
pub extern "C" fn cuStreamSynchronize(stream: Stream) -> Code {
    Code::of(device::enter("cuStreamSynchronize").and_then(|device| stream::find(stream, device)?.finish()))
}

/// `CUresult cuStreamWaitEvent(CUstream, CUevent, unsigned int flags)`
#[unsafe(no_mangle)]
pub extern "C" fn cuStreamWaitEvent(stream: Stream, event: abi::Event, flags: c_uint) -> Code {
    if flags > 1 {
        return Code::INVALID_VALUE;
    }
    Code::of(device::enter("cuStreamWaitEvent").and_then(|device| {
        let stream = stream::find(stream, device)?;
        event::find(event)?.hold_up(&stream)
    }))
}
