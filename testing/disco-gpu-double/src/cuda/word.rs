//! Words of memory that streams write and wait for, and that kernels poll: in memory of any device or process, or in
//! pinned memory.

use std::sync::atomic::AtomicU32;
use std::sync::atomic::Ordering::{Acquire, Release};

use super::abi::{Code, DevicePointer};
use super::device::{self, Device};
use super::memory::Span;
use super::pinned;
use super::stream::Stream;
use crate::sync::Pauses;

/// A word.
pub(crate) enum Word {
    /// The first word of a span of device memory.
    Device(Span),
    /// A word of pinned host memory.
    Pinned(pinned::Word),
}

/// Makes a stream write a word after its earlier work.
pub(crate) fn write(stream: &Stream, pointer: DevicePointer, value: u32) -> Result<(), Code> {
    let (word, device) = (of(pointer)?, stream.device());
    stream.push(Box::new(move || {
        word.check()?;
        word.check_access(device)?;
        word.atomic().store(value, Release);
        Ok(())
    }));
    Ok(())
}

/// Makes a stream wait until `is_there` holds for a word. The wait ends only with that or with the end of the device.
pub(crate) fn wait(
    stream: &Stream,
    pointer: DevicePointer,
    is_there: impl Fn(u32) -> bool + Send + Sync + 'static,
) -> Result<(), Code> {
    let (word, device) = (of(pointer)?, stream.device());
    stream.push_wait(Box::new(move || {
        let mut pauses = Pauses::default();
        word.check_access(device)?;
        loop {
            word.check()?;
            if is_there(word.atomic().load(Acquire)) || device.is_gone() {
                return Ok(());
            }
            pauses.pause();
        }
    }));
    Ok(())
}

/// The word at a device pointer that is an argument of an export. Streams can't access words of pools: the driver of CUDA
/// 13.0 refuses them.
fn of(pointer: DevicePointer) -> Result<Word, Code> {
    device::all()?;
    let word = Word::find(pointer).filter(|word| !matches!(word, Word::Device(span) if span.is_in_pool()));
    word.ok_or(Code::INVALID_VALUE)
}

impl Word {
    /// The word at an address.
    pub(crate) fn find(pointer: DevicePointer) -> Option<Self> {
        let address = pointer as usize;
        match Span::find(address, 4) {
            Some(span) => (!span.words().is_empty()).then_some(Self::Device(span)),
            None => pinned::word(address).map(Self::Pinned),
        }
    }

    /// Checks that the memory was neither freed nor closed.
    pub(crate) fn check(&self) -> Result<(), Code> {
        match self {
            Self::Device(span) => span.check(),
            Self::Pinned(_) => Ok(()),
        }
    }

    /// Checks that a device can access the word.
    pub(crate) fn check_access(&self, from: &Device) -> Result<(), Code> {
        match self {
            Self::Device(span) => span.check_access(from),
            Self::Pinned(_) => Ok(()),
        }
    }

    /// The word, which other threads and processes may change at any time.
    pub(crate) fn atomic(&self) -> &AtomicU32 {
        match self {
            Self::Device(span) => &span.words()[0],
            Self::Pinned(word) => word.atomic(),
        }
    }
}
