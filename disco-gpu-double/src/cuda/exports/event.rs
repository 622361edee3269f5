//! Events. They measure no time.

#![allow(unsafe_code, reason = "C functions")]

use std::ffi::c_uint;

use crate::cuda::abi::{Code, Event, Stream};
use crate::cuda::{device, event, stream};

/// `CUresult cuEventCreate(CUevent *event, unsigned int flags)`: the flags are `BLOCKING_SYNC` and `DISABLE_TIMING`.
#[unsafe(no_mangle)]
pub extern "C" fn cuEventCreate(at: Option<&mut Event>, flags: c_uint) -> Code {
    let Some(at) = at.filter(|_| flags <= 3) else { return Code::INVALID_VALUE };
    Code::of(device::begin_call("cuEventCreate").map(|device| *at = event::create(device)))
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
