//! Writes of words by streams, and waits for words.

#![allow(unsafe_code, reason = "C functions")]

use std::ffi::c_uint;

use crate::cuda::abi::{Code, DevicePointer, Stream};
use crate::cuda::{device, stream, word};

/// `CUresult cuStreamWriteValue32_v2(CUstream, CUdeviceptr, cuuint32_t value, unsigned int flags)`: the flag for no
/// memory barrier is ignored; the write always comes after the stream's earlier writes.
#[unsafe(no_mangle)]
pub extern "C" fn cuStreamWriteValue32_v2(stream: Stream, pointer: DevicePointer, value: u32, flags: c_uint) -> Code {
    if flags > 1 {
        return Code::INVALID_VALUE;
    }
    let device = device::begin_call("cuStreamWriteValue32_v2");
    Code::of(device.and_then(|device| word::write(&*stream::find(stream, device)?, pointer, value)))
}

/// `CUresult cuStreamWaitValue32_v2(CUstream, CUdeviceptr, cuuint32_t value, unsigned int flags)`:
/// `CU_STREAM_WAIT_VALUE_GEQ`, by a comparison that may wrap. `EQ`, `AND` and `NOR` are not supported.
#[unsafe(no_mangle)]
pub extern "C" fn cuStreamWaitValue32_v2(stream: Stream, pointer: DevicePointer, value: u32, flags: c_uint) -> Code {
    match flags {
        0 => {}
        1..=3 => return Code::NOT_SUPPORTED,
        _ => return Code::INVALID_VALUE,
    }
    let device = device::begin_call("cuStreamWaitValue32_v2");
    let is_there = move |word: u32| word.wrapping_sub(value) as i32 >= 0;
    Code::of(device.and_then(|device| word::wait(&*stream::find(stream, device)?, pointer, is_there)))
}
