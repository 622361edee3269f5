//! Launches of operations, measured for timelines.

use std::mem;
use std::sync::{Arc, Mutex};

use disco_core::activity::{Activity, nanoseconds};
use disco_core::{Result, sync};

use super::Runtime;
use super::device_times::{ANCHOR_INTERVAL, DeviceTimes, Launch, MAX_PENDING, Open, Pending};
use crate::driver::Driver;

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
        self.with_times(times, |open, driver| {
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
        self.with_times(times, |open, driver| {
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
        self.with_times(times, |open, driver| {
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

    /// Runs `work` with the device current, unless the stream is being captured, which queries of events would end.
    fn with_times<T>(&self, times: &DeviceTimes, work: impl FnOnce(&mut Open, &dyn Driver) -> Result<T>) -> Option<T> {
        let mut open = sync::lock(&times.open);
        if open.is_none() || self.is_capturing().unwrap_or(true) {
            return None;
        }
        let (mut work, mut done) = (Some(work), None);
        self.driver().with_current(&mut || {
            done = work.take().zip(open.as_mut()).map(|(work, open)| work(open, self.driver()));
        });
        match done? {
            Ok(result) => Some(result),
            Err(error) => {
                times.activity.note(&format!("no device times from here on: {error}"));
                open.take().into_iter().for_each(|open| open.end(self.driver()));
                None
            }
        }
    }
}
