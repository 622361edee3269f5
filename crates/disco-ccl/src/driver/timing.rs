//! The driver's functions for events that have times.

#![allow(unsafe_code)]

use std::ffi::{c_uint, c_void};
use std::ptr;
use std::time::Duration;

use disco_core::{Error, Result};

use crate::driver_table::functions;

functions! {
    /// The functions, which have the same signatures in CUDA and HIP. Their calls are made with the device current.
    pub struct TimingFunctions[2] {
        /// `cuEventCreate(CUevent *, unsigned flags)`, `hipEventCreateWithFlags`
        0 create: fn(*mut *mut c_void, c_uint);
        /// `cuEventElapsedTime(float *milliseconds, CUevent start, CUevent end)`
        1 elapsed: fn(*mut f32, *mut c_void, *mut c_void);
    }
}

impl TimingFunctions {
    /// Creates an event whose records have times.
    ///
    /// # Errors
    /// Errors of the driver.
    pub(crate) fn create(&self) -> Result<EventHandle> {
        let mut event = ptr::null_mut();
        // SAFETY: `event` is a valid output; flags of 0 mean that the event has times.
        self.check(0, unsafe { (self.create)(&mut event, 0) }).map(|()| EventHandle(event))
    }

    /// The time between two events on the device. The driver rounds it to some 0.5 µs, and to a 32-bit float of
    /// milliseconds.
    ///
    /// # Safety
    /// Both events came from [`TimingFunctions::create`], are not destroyed, and the device has passed them.
    ///
    /// # Errors
    /// Errors of the driver.
    pub(crate) unsafe fn elapsed(&self, start: EventHandle, end: EventHandle) -> Result<Duration> {
        let mut milliseconds = 0.0;
        // SAFETY: the caller guarantees that both events exist; `milliseconds` is a valid output.
        self.check(1, unsafe { (self.elapsed)(&mut milliseconds, start.0, end.0) })?;
        // Within the resolution, the events may be in the wrong order.
        let known = if milliseconds > -1e-3 { milliseconds.max(0.0) } else { milliseconds };
        let elapsed = Duration::try_from_secs_f64(f64::from(known) / 1e3);
        elapsed.map_err(|_| Error::protocol(format!("the driver measures {milliseconds} ms between two events")))
    }
}

/// A vendor's event: `CUevent`, `hipEvent_t`.
#[derive(Clone, Copy, Debug)]
#[allow(clippy::exhaustive_structs, reason = "each driver makes them")]
pub struct EventHandle(pub *mut c_void);

// SAFETY: an event is an opaque handle, which the library accepts on any thread.
unsafe impl Send for EventHandle {}
