//! Events: each record makes a point in a stream, for which threads and other streams can wait. A point has the time at
//! which the stream reached it.

use std::sync::{Arc, Condvar, Mutex};
use std::time::Instant;

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
    /// Whether its times can be asked for.
    has_times: bool,
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
    /// When the stream reached it.
    time: Mutex<Option<Instant>>,
    reached: Condvar,
}

/// `cuEventCreate`.
pub(crate) fn create(device: &'static Device, has_times: bool) -> abi::Event {
    EVENTS.insert(Arc::new(Event { device, has_times, last: Mutex::new(LastRecord::Nothing) }))
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
            *lock(&point.time) = Some(Instant::now());
            point.reached.notify_all();
            Ok(())
        }));
        Ok(())
    }

    /// `cuEventQuery`: not ready until the stream has reached the point.
    pub(crate) fn query(&self) -> Result<(), Code> {
        let is_reached = self.point()?.is_none_or(|point| lock(&point.time).is_some());
        self.device.check()?;
        if is_reached { Ok(()) } else { Err(Code::NOT_READY) }
    }

    /// `cuEventElapsedTime`: milliseconds from this event to another one of the same device. Both must have times, and their
    /// stream must have reached them.
    pub(crate) fn elapsed(&self, end: &Self) -> Result<f32, Code> {
        if self.device.ordinal != end.device.ordinal || !self.has_times || !end.has_times {
            return Err(Code::INVALID_HANDLE);
        }
        let [start, end] = [self.point()?, end.point()?].map(|point| point.map(|point| *lock(&point.time)));
        self.device.check()?;
        // An event without a record has no time, and one that is not reached has none yet.
        let start = start.ok_or(Code::INVALID_HANDLE)?.ok_or(Code::NOT_READY)?;
        let end = end.ok_or(Code::INVALID_HANDLE)?.ok_or(Code::NOT_READY)?;
        let seconds = match end.checked_duration_since(start) {
            Some(after) => after.as_secs_f64(),
            None => -start.duration_since(end).as_secs_f64(),
        };
        Ok((seconds * 1e3) as f32)
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
        let mut time = lock(&self.time);
        while time.is_none() {
            time = wait(&self.reached, time);
        }
    }
}
