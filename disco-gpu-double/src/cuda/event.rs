//! Events: each record makes a mark, which a stream reaches, and which others wait for.

use std::sync::{Arc, Condvar, Mutex};

use super::abi::{self, Code};
use super::capture::{Capture, Clock};
use super::device::Device;
use super::stream::Stream;
use crate::handles::Handles;
use crate::sync::{lock, wait};

static EVENTS: Handles<Event> = Handles::new(0x6_0000_0000);

/// One event.
pub(crate) struct Event {
    device: &'static Device,
    last: Mutex<Last>,
}

/// The last record of an event.
#[derive(Clone)]
enum Last {
    /// No record yet: the event counts as reached.
    Nothing,
    Mark(Arc<Mark>),
    /// A point of a capture, which can't be queried.
    Captured(Arc<Capture>, Clock),
}

#[derive(Default)]
struct Mark {
    is_reached: Mutex<bool>,
    reached: Condvar,
}

/// `cuEventCreate`.
pub(crate) fn create(device: &'static Device) -> abi::Event {
    EVENTS.insert(Arc::new(Event { device, last: Mutex::new(Last::Nothing) }))
}

/// `cuEventDestroy`: who waits for it already goes on to.
pub(crate) fn destroy(handle: abi::Event) -> Result<(), Code> {
    EVENTS.remove(handle).map(drop).ok_or(Code::INVALID_HANDLE)
}

/// The event of a handle.
pub(crate) fn find(handle: abi::Event) -> Result<Arc<Event>, Code> {
    EVENTS.find(handle).ok_or(Code::INVALID_HANDLE)
}

/// How many events there are.
pub(crate) fn live() -> usize {
    EVENTS.len()
}

impl Event {
    /// Marks where a stream of the same device is now.
    pub(crate) fn record(&self, stream: &Stream) -> Result<(), Code> {
        if stream.device().ordinal != self.device.ordinal {
            return Err(Code::INVALID_HANDLE);
        }
        if let Some(capture) = stream.capture.current() {
            let clock = capture.clock(stream);
            *lock(&self.last) = Last::Captured(capture, clock);
            return Ok(());
        }
        let mark = Arc::new(Mark::default());
        *lock(&self.last) = Last::Mark(Arc::clone(&mark));
        stream.push(Box::new(move || {
            *lock(&mark.is_reached) = true;
            mark.reached.notify_all();
            Ok(())
        }));
        Ok(())
    }

    /// `cuEventQuery`: not ready before the stream has come to the mark.
    pub(crate) fn query(&self) -> Result<(), Code> {
        let is_reached = self.mark()?.is_none_or(|mark| *lock(&mark.is_reached));
        self.device.check()?;
        if is_reached { Ok(()) } else { Err(Code::NOT_READY) }
    }

    /// `cuEventSynchronize`: waits for the mark that is there now, and says what the device has failed with.
    pub(crate) fn synchronize(&self) -> Result<(), Code> {
        if let Some(mark) = self.mark()? {
            mark.wait();
        }
        self.device.check()
    }

    /// Has a stream, of any device, wait for the mark that is there now.
    pub(crate) fn hold_up(&self, stream: &Arc<Stream>) -> Result<(), Code> {
        let last = lock(&self.last).clone();
        match last {
            Last::Nothing => {}
            Last::Captured(capture, clock) => capture.hold_up(stream, &clock)?,
            Last::Mark(_) if stream.capture.refuse().is_err() => return Err(Code::STREAM_CAPTURE_ISOLATION),
            Last::Mark(mark) => stream.push_wait(Box::new(move || {
                mark.wait();
                Ok(())
            })),
        }
        Ok(())
    }

    /// The current mark. Refuses a point of a capture, and invalidates the capture.
    fn mark(&self) -> Result<Option<Arc<Mark>>, Code> {
        match &*lock(&self.last) {
            Last::Nothing => Ok(None),
            Last::Mark(mark) => Ok(Some(Arc::clone(mark))),
            Last::Captured(capture, _) => {
                capture.invalidate();
                Err(Code::CAPTURED_EVENT)
            }
        }
    }
}

impl Mark {
    fn wait(&self) {
        let mut is_reached = lock(&self.is_reached);
        while !*is_reached {
            is_reached = wait(&self.reached, is_reached);
        }
    }
}
