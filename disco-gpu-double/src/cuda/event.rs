//! Events: each record makes a point in a stream, for which threads and other streams can wait.

use std::sync::{Arc, Condvar, Mutex};

use super::abi::{self, Code};
use super::capture::{Capture, VectorClock};
use super::device::Device;
use super::stream::Stream;
use crate::handles::Handles;
use crate::sync::{lock, wait};

static EVENTS: Handles<Event> = Handles::new(0x6_0000_0000);

/// An event.
pub(crate) struct Event {
    device: &'static Device,
    last: Mutex<LastRecord>,
}

/// The last record of an event.
#[derive(Clone)]
enum LastRecord {
    /// No record yet: the event counts as reached.
    Nothing,
    Point(Arc<RecordedPoint>),
    /// A point of a capture, which can't be queried.
    Captured(Arc<Capture>, VectorClock),
}

#[derive(Default)]
struct RecordedPoint {
    is_reached: Mutex<bool>,
    reached: Condvar,
}

/// `cuEventCreate`.
pub(crate) fn create(device: &'static Device) -> abi::Event {
    EVENTS.insert(Arc::new(Event { device, last: Mutex::new(LastRecord::Nothing) }))
}

/// `cuEventDestroy`: running waits continue.
pub(crate) fn destroy(handle: abi::Event) -> Result<(), Code> {
    EVENTS.remove(handle).map(drop).ok_or(Code::INVALID_HANDLE)
}

/// The event of a handle.
pub(crate) fn find(handle: abi::Event) -> Result<Arc<Event>, Code> {
    EVENTS.find(handle).ok_or(Code::INVALID_HANDLE)
}

/// Number of events.
pub(crate) fn live() -> usize {
    EVENTS.len()
}

impl Event {
    /// Records the current point of a stream of the same device.
    pub(crate) fn record(&self, stream: &Stream) -> Result<(), Code> {
        if stream.device().ordinal != self.device.ordinal {
            return Err(Code::INVALID_HANDLE);
        }
        if let Some(capture) = stream.capture.current() {
            let clock = capture.clock(stream);
            *lock(&self.last) = LastRecord::Captured(capture, clock);
            return Ok(());
        }
        let point = Arc::new(RecordedPoint::default());
        *lock(&self.last) = LastRecord::Point(Arc::clone(&point));
        stream.push(Box::new(move || {
            *lock(&point.is_reached) = true;
            point.reached.notify_all();
            Ok(())
        }));
        Ok(())
    }

    /// `cuEventQuery`: not ready until the stream has reached the point.
    pub(crate) fn query(&self) -> Result<(), Code> {
        let is_reached = self.point()?.is_none_or(|point| *lock(&point.is_reached));
        self.device.check()?;
        if is_reached { Ok(()) } else { Err(Code::NOT_READY) }
    }

    /// `cuEventSynchronize`: waits for the last recorded point, and returns the device's sticky error, if any.
    pub(crate) fn synchronize(&self) -> Result<(), Code> {
        if let Some(point) = self.point()? {
            point.wait();
        }
        self.device.check()
    }

    /// Makes a stream of any device wait for the last recorded point.
    pub(crate) fn make_wait(&self, stream: &Arc<Stream>) -> Result<(), Code> {
        let last = lock(&self.last).clone();
        match last {
            LastRecord::Nothing => {}
            LastRecord::Captured(capture, clock) => capture.make_wait(stream, &clock)?,
            LastRecord::Point(_) if stream.capture.refuse().is_err() => return Err(Code::STREAM_CAPTURE_ISOLATION),
            LastRecord::Point(point) => stream.push_wait(Box::new(move || {
                point.wait();
                Ok(())
            })),
        }
        Ok(())
    }

    /// The last recorded point. Rejects a point of a capture, and invalidates the capture.
    fn point(&self) -> Result<Option<Arc<RecordedPoint>>, Code> {
        match &*lock(&self.last) {
            LastRecord::Nothing => Ok(None),
            LastRecord::Point(point) => Ok(Some(Arc::clone(point))),
            LastRecord::Captured(capture, _) => {
                capture.invalidate();
                Err(Code::CAPTURED_EVENT)
            }
        }
    }
}

impl RecordedPoint {
    fn wait(&self) {
        let mut is_reached = lock(&self.is_reached);
        while !*is_reached {
            is_reached = wait(&self.reached, is_reached);
        }
    }
}
