//! Events. Their times are those of the host's monotonic clock.

#![allow(unsafe_code, reason = "C functions")]

use std::ffi::c_uint;

use crate::cuda::abi::{Code, Event, Stream};
use crate::cuda::{device, event, stream};

/// `CU_EVENT_DISABLE_TIMING`
const DISABLE_TIMING: c_uint = 2;

/// `CUresult cuEventCreate(CUevent *event, unsigned int flags)`: the flags are `BLOCKING_SYNC` and `DISABLE_TIMING`.
#[unsafe(no_mangle)]
pub extern "C" fn cuEventCreate(at: Option<&mut Event>, flags: c_uint) -> Code {
    let Some(at) = at.filter(|_| flags <= 3) else { return Code::INVALID_VALUE };
    Code::of(device::begin_call("cuEventCreate").map(|device| *at = event::create(device, flags & DISABLE_TIMING == 0)))
}

/// `CUresult cuEventRecord(CUevent, CUstream)`: both must be of the same device.
#[unsafe(no_mangle)]
pub extern "C" fn cuEventRecord(event: Event, stream: Stream) -> Code {
    Code::of(device::begin_call("cuEventRecord").and_then(|device| {
        let stream = stream::find(stream, device)?;
        event::find(event)?.record(&stream)
    }))
}

/// `CUresult cuEventQuery(CUevent)`
#[unsafe(no_mangle)]
pub extern "C" fn cuEventQuery(event: Event) -> Code {
    Code::of(device::begin_call("cuEventQuery").and_then(|_| event::find(event)?.query()))
}

/// `CUresult cuEventElapsedTime(float *milliseconds, CUevent start, CUevent end)`
#[unsafe(no_mangle)]
pub extern "C" fn cuEventElapsedTime(milliseconds: Option<&mut f32>, start: Event, end: Event) -> Code {
    let Some(milliseconds) = milliseconds else { return Code::INVALID_VALUE };
    Code::of(device::begin_call("cuEventElapsedTime").and_then(|_| {
        *milliseconds = event::find(start)?.elapsed(&*event::find(end)?)?;
        Ok(())
    }))
}

/// `CUresult cuEventSynchronize(CUevent)`
#[unsafe(no_mangle)]
pub extern "C" fn cuEventSynchronize(event: Event) -> Code {
    Code::of(device::begin_call("cuEventSynchronize").and_then(|_| event::find(event)?.synchronize()))
}

/// `CUresult cuEventDestroy_v2(CUevent)`: does not wait. Also destroys the event if its device has failed.
#[unsafe(no_mangle)]
pub extern "C" fn cuEventDestroy_v2(event: Event) -> Code {
    Code::of(device::current().and_then(|device| event::destroy(event).and_then(|()| device.check())))
}
