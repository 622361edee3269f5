//! Words of memory that streams write, and wait for: of any device, and of other processes.

use std::sync::atomic::Ordering::{Acquire, Release};

use super::abi::{Code, DevicePointer};
use super::memory::Span;
use super::stream::Stream;
use crate::sync::Pauses;

/// Has a stream write a word, after all that was done before.
pub(crate) fn write(stream: &Stream, pointer: DevicePointer, value: u32) -> Result<(), Code> {
    let (span, device) = (find(pointer)?, stream.device());
    stream.push(Box::new(move || {
        span.check()?;
        span.reach(device)?;
        span.word().ok_or(Code::ILLEGAL_ADDRESS)?.store(value, Release);
        Ok(())
    }));
    Ok(())
}

/// Has a stream wait until a word is as it is to be; for ever, if it never is, but for a device that is gone.
pub(crate) fn wait(
    stream: &Stream,
    pointer: DevicePointer,
    is_there: impl Fn(u32) -> bool + Send + 'static,
) -> Result<(), Code> {
    let (span, device) = (find(pointer)?, stream.device());
    stream.push(Box::new(move || {
        let mut pauses = Pauses::default();
        span.reach(device)?;
        loop {
            span.check()?;
            let word = span.word().ok_or(Code::ILLEGAL_ADDRESS)?.load(Acquire);
            if is_there(word) || device.is_gone() {
                return Ok(());
            }
            pauses.pause();
        }
    }));
    Ok(())
}

fn find(pointer: DevicePointer) -> Result<Span, Code> {
    let span = Span::of(pointer, 4)?;
    if span.word().is_some() { Ok(span) } else { Err(Code::INVALID_VALUE) }
}
