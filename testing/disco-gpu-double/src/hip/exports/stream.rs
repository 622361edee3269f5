//! Streams.

#![allow(unsafe_code, reason = "C functions")]

use std::ffi::{c_int, c_uint};

use crate::cuda::stream;
use crate::hip::abi::{Code, STREAM_NON_BLOCKING, Stream};
use crate::hip::{current, last};
use crate::settings;

/// The least and the greatest priority. The default is 0.
const PRIORITIES: [c_int; 2] = [1, -1];

/// `hipError_t hipStreamCreateWithFlags(hipStream_t *stream, unsigned int flags)`
#[unsafe(no_mangle)]
pub extern "C" fn hipStreamCreateWithFlags(at: Option<&mut Stream>, flags: c_uint) -> Code {
    let at = at.filter(|_| flags & !STREAM_NON_BLOCKING == 0).ok_or(Code::INVALID_VALUE);
    last::note(at.and_then(|at| {
        let device = current::begin_call("hipStreamCreateWithFlags")?;
        *at = stream::create(device, flags == 0, settings::read().hip_queues());
        Ok(())
    }))
}

/// `hipError_t hipStreamCreateWithPriority(hipStream_t *stream, unsigned int flags, int priority)`: like
/// [`cuStreamCreateWithPriority`](crate::cuda::exports::stream::cuStreamCreateWithPriority).
#[unsafe(no_mangle)]
pub extern "C" fn hipStreamCreateWithPriority(at: Option<&mut Stream>, flags: c_uint, priority: c_int) -> Code {
    let at = at.filter(|_| flags & !STREAM_NON_BLOCKING == 0).ok_or(Code::INVALID_VALUE);
    last::note(at.and_then(|at| {
        let device = current::begin_call("hipStreamCreateWithPriority")?;
        *at = stream::create_with(device, flags == 0, priority, settings::read().hip_queues());
        Ok(())
    }))
}

/// `hipError_t hipDeviceGetStreamPriorityRange(int *least, int *greatest)`: either pointer may be null.
#[unsafe(no_mangle)]
pub extern "C" fn hipDeviceGetStreamPriorityRange(least: Option<&mut c_int>, greatest: Option<&mut c_int>) -> Code {
    last::note(current::begin_call("hipDeviceGetStreamPriorityRange").map(|_| {
        let places = [least, greatest].into_iter().zip(stream::priorities(PRIORITIES));
        places.for_each(|(at, priority)| at.into_iter().for_each(|at| *at = priority));
    }))
}

/// `hipError_t hipStreamDestroy(hipStream_t)`: does not wait. Also destroys the stream if its device has failed.
#[unsafe(no_mangle)]
pub extern "C" fn hipStreamDestroy(stream: Stream) -> Code {
    last::note(current::current().and_then(|device| {
        stream::destroy(stream)?;
        Ok(device.check()?)
    }))
}

/// `hipError_t hipStreamQuery(hipStream_t)`
#[unsafe(no_mangle)]
pub extern "C" fn hipStreamQuery(stream: Stream) -> Code {
    last::note(current::begin_call("hipStreamQuery").and_then(|device| Ok(stream::find(stream, device)?.query()?)))
}

/// `hipError_t hipStreamSynchronize(hipStream_t)`
#[unsafe(no_mangle)]
pub extern "C" fn hipStreamSynchronize(stream: Stream) -> Code {
    last::note(
        current::begin_call("hipStreamSynchronize").and_then(|device| Ok(stream::find(stream, device)?.finish()?)),
    )
}
