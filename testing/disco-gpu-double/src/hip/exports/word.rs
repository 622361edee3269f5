//! Writes of words by streams, and waits for words.

#![allow(unsafe_code, reason = "C functions")]

use std::ffi::{c_uint, c_void};

use crate::cuda::abi::DevicePointer;
use crate::cuda::memory::{Kind, Span};
use crate::cuda::{stream, word};
use crate::hip::abi::{Code, Stream};
use crate::hip::{current, last};
use crate::settings;

/// `hipError_t hipStreamWriteValue32(hipStream_t, void *, uint32_t value, unsigned int flags)`: refuses coarse-grained
/// memory of another device, where a wait may never see the write.
#[unsafe(no_mangle)]
pub extern "C" fn hipStreamWriteValue32(stream: Stream, pointer: *mut c_void, value: u32, flags: c_uint) -> Code {
    last::note(current::begin_call("hipStreamWriteValue32").and_then(|device| {
        if flags != 0 {
            return Err(Code::INVALID_VALUE);
        }
        let stream = stream::find(stream, device)?;
        let is_unseen = |span: Span| span.kind() == Kind::Coarse && !span.is_of(device);
        if Span::find(pointer.addr(), 4).is_some_and(is_unseen) {
            return Err(Code::INVALID_VALUE);
        }
        Ok(word::write(&stream, pointer.addr() as DevicePointer, value)?)
    }))
}

/// `hipError_t hipStreamWaitValue32(hipStream_t, void *, uint32_t value, unsigned int flags, uint32_t mask)`:
/// `hipStreamWaitValueGte` of all bits; other conditions and masks are not supported. Unlike CUDA's comparison, it does not
/// wrap: HIP's kernel for it (`__amd_streamOpsWait`) compares unsigned numbers. With `GPU_STREAMOPS_CP_WAIT=1`, the
/// word must be in signal memory.
#[unsafe(no_mangle)]
pub extern "C" fn hipStreamWaitValue32(
    stream: Stream,
    pointer: *mut c_void,
    value: u32,
    flags: c_uint,
    mask: u32,
) -> Code {
    last::note(current::begin_call("hipStreamWaitValue32").and_then(|device| {
        if (flags, mask) != (0, u32::MAX) {
            return Err(Code::INVALID_VALUE);
        }
        let stream = stream::find(stream, device)?;
        let is_signal = |span: Span| span.kind() == Kind::Signal;
        if settings::read().waits_in_signal_memory() && !Span::find(pointer.addr(), 4).is_some_and(is_signal) {
            return Err(Code::INVALID_VALUE);
        }
        Ok(word::wait(&stream, pointer.addr() as DevicePointer, move |word| word >= value)?)
    }))
}
