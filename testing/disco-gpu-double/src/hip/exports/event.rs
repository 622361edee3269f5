//! Events. Their times are those of the host's monotonic clock.

#![allow(unsafe_code, reason = "C functions")]

use std::ffi::c_uint;

use crate::cuda::{event, stream};
use crate::hip::abi::{Code, Event, Stream};
use crate::hip::{current, last};

/// The valid flags of an event: `hipEventBlockingSync`, `hipEventDisableTiming`, and the scopes of its memory fence
/// (`hipEventDisableSystemFence`, `hipEventReleaseToDevice`, `hipEventReleaseToSystem`). The double ignores them,
/// except `hipEventDisableTiming`.
const FLAGS: c_uint = 0xe000_0003;

/// `hipEventDisableTiming`
const DISABLE_TIMING: c_uint = 2;

/// `hipError_t hipEventCreateWithFlags(hipEvent_t *event, unsigned flags)`
#[unsafe(no_mangle)]
pub extern "C" fn hipEventCreateWithFlags(at: Option<&mut Event>, flags: c_uint) -> Code {
    let at = at.filter(|_| flags & !FLAGS == 0).ok_or(Code::INVALID_VALUE);
    last::note(at.and_then(|at| {
        *at = event::create(current::begin_call("hipEventCreateWithFlags")?, flags & DISABLE_TIMING == 0);
        Ok(())
    }))
}

/// `hipError_t hipEventRecord(hipEvent_t, hipStream_t)`: both must be of the same device.
#[unsafe(no_mangle)]
pub extern "C" fn hipEventRecord(event: Event, stream: Stream) -> Code {
    last::note(current::begin_call("hipEventRecord").and_then(|device| {
        let stream = stream::find(stream, device)?;
        Ok(event::find(event)?.record(&stream)?)
    }))
}

/// `hipError_t hipStreamWaitEvent(hipStream_t, hipEvent_t, unsigned flags)`
#[unsafe(no_mangle)]
pub extern "C" fn hipStreamWaitEvent(stream: Stream, event: Event, flags: c_uint) -> Code {
    if flags != 0 {
        return last::note(Err(Code::INVALID_VALUE));
    }
    last::note(current::begin_call("hipStreamWaitEvent").and_then(|device| {
        let stream = stream::find(stream, device)?;
        Ok(event::find(event)?.make_wait(&stream)?)
    }))
}

/// `hipError_t hipEventQuery(hipEvent_t)`
#[unsafe(no_mangle)]
pub extern "C" fn hipEventQuery(event: Event) -> Code {
    last::note(current::begin_call("hipEventQuery").and_then(|_| Ok(event::find(event)?.query()?)))
}

/// `hipError_t hipEventElapsedTime(float *milliseconds, hipEvent_t start, hipEvent_t stop)`
#[unsafe(no_mangle)]
pub extern "C" fn hipEventElapsedTime(milliseconds: Option<&mut f32>, start: Event, stop: Event) -> Code {
    let milliseconds = milliseconds.ok_or(Code::INVALID_VALUE);
    last::note(milliseconds.and_then(|milliseconds| {
        current::begin_call("hipEventElapsedTime")?;
        *milliseconds = event::find(start)?.elapsed(&*event::find(stop)?)?;
        Ok(())
    }))
}

/// `hipError_t hipEventDestroy(hipEvent_t)`: does not wait. Also destroys the event if its device has failed.
#[unsafe(no_mangle)]
pub extern "C" fn hipEventDestroy(event: Event) -> Code {
    last::note(current::current().and_then(|device| {
        event::destroy(event)?;
        Ok(device.check()?)
    }))
}
