//! Times of operations on the device, for timelines: an event before and one behind each launch.
//!
//! No call waits for an operation. Events that the stream has passed are read at later launches, after a wait for the
//! stream, and at the end of a communicator. A failure of an event ends the measurements with a note in the timeline.

#![allow(unsafe_code)]

use std::collections::VecDeque;
use std::hint;
use std::mem;
use std::sync::{Arc, Mutex};

use disco_core::activity::{Activity, RunningOp, nanoseconds};
use disco_core::{Result, sync};

use super::Runtime;
use super::device_clock::{DeviceClock, Measured};
use crate::driver::{Driver, EventHandle, TimingFunctions};

/// Largest number of operations that are measured at a time.
const MAX_PENDING: usize = 1024;
/// Time after which an idle stream gets a new anchor, in nanoseconds.
const ANCHOR_INTERVAL: u64 = 100_000_000;
/// How long an anchor is waited for, in nanoseconds. An idle stream passes an event within some 10 µs.
const ANCHOR_TIMEOUT: u64 = 1_000_000;
/// Time after which times are measured from a later event, in nanoseconds: the driver rounds long times.
const BASE_INTERVAL: u64 = 1_000_000_000;

/// Measures the operations of one stream.
#[derive(Debug)]
pub(super) struct DeviceTimes {
    activity: Arc<Activity>,
    /// `None` after a failure.
    open: Mutex<Option<Open>>,
}

#[derive(Debug)]
struct Open {
    functions: TimingFunctions,
    clock: DeviceClock,
    /// The event from which times are measured, and its time since the first such event.
    base: (EventHandle, u64),
    /// The host's time of the last anchor.
    anchored: u64,
    pending: VecDeque<Pending>,
    free: Vec<EventHandle>,
    has_skipped: bool,
}

/// A launch of which the start is recorded.
#[derive(Debug)]
pub(crate) struct Launch {
    start: EventHandle,
    /// The host's time before.
    launched: u64,
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
struct Pending {
    op: RunningOp,
    launch: Launch,
    end: EventHandle,
}

impl Runtime {
    /// From now on, measures operations for the timeline of `activity`, which has one. Waits for at most 1 ms.
    pub(crate) fn measure(&self, activity: &Arc<Activity>) {
        if self.times.get().is_some() {
            return;
        }
        let open = self.driver().timing().map_err(|why| format!("no device times: {why}")).and_then(|functions| {
            let mut open = Ok(None);
            self.driver().with_current(&mut || open = Open::start(functions, self.driver()).map(Some));
            open.map_err(|error| format!("no device times: {error}"))
        });
        let open = open.unwrap_or_else(|why| {
            activity.note(&why);
            None
        });
        _ = self.times.set(DeviceTimes { activity: activity.clone(), open: Mutex::new(open) });
    }

    /// Records the start of a launch, if operations are measured and the stream is not being captured.
    #[inline]
    pub(crate) fn begin_launch(&self) -> Option<Launch> {
        let times = self.times.get()?;
        times.run(self, |open, driver| {
            open.read(driver, &times.activity)?;
            if open.pending.len() == MAX_PENDING {
                if !mem::replace(&mut open.has_skipped, true) {
                    let why = "the stream was more than 1024 operations behind";
                    times.activity.note(&format!("some device times are missing: {why}"));
                }
                return Ok(None);
            }
            let launched = nanoseconds();
            Ok(Some(Launch { start: open.record(driver)?, launched }))
        })?
    }

    /// Records the end of a launch; `ok` tells whether it has succeeded. Called inside of the operation.
    pub(crate) fn end_launch(&self, launch: Launch, ok: bool) {
        let Some(times) = self.times.get() else { return };
        let op = times.activity.running_op().filter(|_| ok);
        times.run(self, |open, driver| {
            let Some(op) = op else {
                open.free.push(launch.start);
                return Ok(());
            };
            match open.record(driver) {
                Ok(end) => open.pending.push_back(Pending { op, launch, end }),
                Err(error) => {
                    open.free.push(launch.start);
                    return Err(error);
                }
            }
            Ok(())
        });
    }

    /// Reads the times of operations that are done. `is_idle` tells whether the stream is: then the clocks are aligned
    /// anew, which takes at most 1 ms.
    pub(crate) fn read_device_times(&self, is_idle: bool) {
        let Some(times) = self.times.get() else { return };
        times.run(self, |open, driver| {
            if is_idle && nanoseconds().saturating_sub(open.anchored) > ANCHOR_INTERVAL {
                open.anchor(driver)?;
            }
            open.read(driver, &times.activity)
        });
    }

    /// Destroys all events.
    pub(super) fn end_measurements(&self) {
        let open = self.times.get().and_then(|times| sync::lock(&times.open).take());
        open.into_iter().for_each(|open| open.end(self.driver()));
    }
}

impl DeviceTimes {
    /// Runs `work` with the device current, unless the stream is being captured, which queries of events would end.
    fn run<T>(&self, runtime: &Runtime, work: impl FnOnce(&mut Open, &dyn Driver) -> Result<T>) -> Option<T> {
        let mut open = sync::lock(&self.open);
        if open.is_none() || runtime.is_capturing().unwrap_or(true) {
            return None;
        }
        let (mut work, mut done) = (Some(work), None);
        runtime.driver().with_current(&mut || {
            done = work.take().zip(open.as_mut()).map(|(work, open)| work(open, runtime.driver()));
        });
        match done? {
            Ok(result) => Some(result),
            Err(error) => {
                self.activity.note(&format!("no device times from here on: {error}"));
                open.take().into_iter().for_each(|open| open.end(runtime.driver()));
                None
            }
        }
    }
}

impl Open {
    fn start(functions: TimingFunctions, driver: &dyn Driver) -> Result<Self> {
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
    fn record(&mut self, driver: &dyn Driver) -> Result<EventHandle> {
        let event = self.free.pop().map_or_else(|| self.functions.create(), Ok)?;
        // SAFETY: the event was created by this driver and is not destroyed before `end`.
        let recorded = unsafe { driver.record_event(event) };
        if recorded.is_err() {
            self.free.push(event);
        }
        recorded.map(|()| event)
    }

    /// Aligns the clocks by an event of which both the launch and the end are known closely, if the stream is idle.
    fn anchor(&mut self, driver: &dyn Driver) -> Result<()> {
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
    fn read(&mut self, driver: &dyn Driver, activity: &Activity) -> Result<()> {
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
    fn end(self, driver: &dyn Driver) {
        let pending = self.pending.into_iter().flat_map(|it| [it.launch.start, it.end]);
        let events: Vec<EventHandle> = pending.chain(self.free).chain([self.base.0]).collect();
        // SAFETY: this driver created the events, and each is destroyed once.
        driver.with_current(&mut || events.iter().for_each(|event| unsafe { driver.destroy_event(*event) }));
    }
}
