//! Times of operations on the device, for timelines: an event before and one behind each launch.
//!
//! No call waits for an operation. Events that the stream has passed are read at later launches, after a wait for the
//! stream, and at the end of a communicator. A failure of an event ends the measurements with a note in the timeline.

#![allow(unsafe_code)]

use std::collections::VecDeque;
use std::hint;
use std::mem;
use std::sync::{Arc, Mutex};

use disco_core::Result;
use disco_core::activity::{Activity, RunningOp, nanoseconds};

use super::device_clock::{DeviceClock, Measured};
use crate::driver::{Driver, EventHandle, TimingFunctions};

/// Largest number of operations that are measured at a time.
pub(super) const MAX_PENDING: usize = 1024;
/// Time after which an idle stream gets a new anchor, in nanoseconds.
pub(super) const ANCHOR_INTERVAL: u64 = 100_000_000;
/// How long an anchor is waited for, in nanoseconds. An idle stream passes an event within some 10 µs.
const ANCHOR_TIMEOUT: u64 = 1_000_000;
/// Time after which times are measured from a later event, in nanoseconds: the driver rounds long times.
const BASE_INTERVAL: u64 = 1_000_000_000;

/// Measures the operations of one stream.
#[derive(Debug)]
pub(super) struct DeviceTimes {
    pub(super) activity: Arc<Activity>,
    /// `None` after a failure.
    pub(super) open: Mutex<Option<Open>>,
}

#[derive(Debug)]
pub(super) struct Open {
    functions: TimingFunctions,
    clock: DeviceClock,
    /// The event from which times are measured, and its time since the first such event.
    base: (EventHandle, u64),
    /// The host's time of the last anchor.
    pub(super) anchored: u64,
    pub(super) pending: VecDeque<Pending>,
    pub(super) free: Vec<EventHandle>,
    pub(super) has_skipped: bool,
}

/// A launch of which the start is recorded.
#[derive(Debug)]
pub(crate) struct Launch {
    pub(super) start: EventHandle,
    /// The host's time before.
    pub(super) launched: u64,
}

/// The place of work on the host's clock, in nanoseconds.
struct Place {
    start: u64,
    length: u64,
    /// Largest error of the start.
    error: u64,
    /// Time of the device since the event from which times are measured.
    since: u64,
}

/// A launch that the stream was not seen to pass.
#[derive(Debug)]
pub(super) struct Pending {
    pub(super) op: RunningOp,
    pub(super) launch: Launch,
    pub(super) end: EventHandle,
}

impl Open {
    pub(super) fn start(functions: TimingFunctions, driver: &dyn Driver) -> Result<Self> {
        let launched = nanoseconds();
        let base = functions.create()?;
        // SAFETY: the event was just created by this driver.
        if let Err(error) = unsafe { driver.record_event(base) } {
            // SAFETY: nothing else uses the event.
            unsafe { driver.destroy_event(base) };
            return Err(error);
        }
        let mut open = Self {
            functions,
            clock: DeviceClock::new(launched),
            base: (base, 0),
            anchored: 0,
            pending: VecDeque::new(),
            free: Vec::new(),
            has_skipped: false,
        };
        match open.anchor(driver) {
            Ok(()) => Ok(open),
            Err(error) => {
                open.end(driver);
                Err(error)
            }
        }
    }

    /// Records an event on the stream.
    pub(super) fn record(&mut self, driver: &dyn Driver) -> Result<EventHandle> {
        let event = self.free.pop().map_or_else(|| self.functions.create(), Ok)?;
        // SAFETY: the event was created by this driver and is not destroyed before `end`.
        let recorded = unsafe { driver.record_event(event) };
        if recorded.is_err() {
            self.free.push(event);
        }
        recorded.map(|()| event)
    }

    /// Aligns the clocks by an event of which both the launch and the end are known closely, if the stream is idle.
    pub(super) fn anchor(&mut self, driver: &dyn Driver) -> Result<()> {
        let launched = nanoseconds();
        let start = self.record(driver)?;
        let anchor = Launch { start, launched };
        loop {
            // SAFETY: the event was created by this driver and is not destroyed before `end`.
            let is_passed = unsafe { driver.is_event_complete(start) };
            let seen = nanoseconds();
            match is_passed {
                Ok(true) => {
                    self.anchored = seen;
                    let aligned = self.align(&anchor, start, seen);
                    self.free.push(start);
                    return aligned.map(drop);
                }
                Ok(false) if seen - launched < ANCHOR_TIMEOUT => hint::spin_loop(),
                result => {
                    self.free.push(start);
                    return result.map(drop);
                }
            }
        }
    }

    /// Adds the times of all operations that are done to the timeline.
    pub(super) fn read(&mut self, driver: &dyn Driver, activity: &Activity) -> Result<()> {
        while let Some(first) = self.pending.front() {
            // SAFETY: the event was created by this driver and is not destroyed before `end`.
            if !unsafe { driver.is_event_complete(first.end) }? {
                break;
            }
            let seen = nanoseconds();
            let Some(Pending { op, launch, end }) = self.pending.pop_front() else { break };
            let aligned = self.align(&launch, end, seen);
            self.free.push(end);
            let place = aligned.inspect_err(|_| self.free.push(launch.start))?;
            activity.add_device_time(&op, place.start, place.length, place.error);
            // All other pending events are later, so times may be measured from this one.
            let (mut free, base_time) = (launch.start, self.base.1.saturating_add(place.since));
            if place.since > BASE_INTERVAL {
                (free, _) = mem::replace(&mut self.base, (launch.start, base_time));
            }
            self.free.push(free);
        }
        Ok(())
    }

    /// The place of work between two events, which the stream has passed.
    fn align(&mut self, launch: &Launch, end: EventHandle, seen: u64) -> Result<Place> {
        let (base, base_time) = self.base;
        // SAFETY: this driver created the events, and they are not destroyed before `end`. The stream has passed them.
        let since = unsafe { self.functions.elapsed(base, launch.start) }?.as_nanos() as u64;
        // SAFETY: as above.
        let length = unsafe { self.functions.elapsed(launch.start, end) }?.as_nanos() as u64;
        let work = Measured { start: base_time.saturating_add(since), length, since, launched: launch.launched, seen };
        let (start, error) = self.clock.align(work);
        Ok(Place { start, length, error, since })
    }

    /// Destroys all events.
    pub(super) fn end(self, driver: &dyn Driver) {
        let pending = self.pending.into_iter().flat_map(|it| [it.launch.start, it.end]);
        let events: Vec<EventHandle> = pending.chain(self.free).chain([self.base.0]).collect();
        // SAFETY: this driver created the events, and each is destroyed once.
        driver.with_current(&mut || events.iter().for_each(|event| unsafe { driver.destroy_event(*event) }));
    }
}
