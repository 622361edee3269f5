//! The clock of records: cheap readings, which are converted to nanoseconds only when records are read.

#![allow(unsafe_code)]

use rustix::time::{ClockId, clock_gettime};

/// The reading of a clock that counts steadily and is the same on all processors of the machine: the processor's time
/// stamp counter if the kernel itself keeps time with it (some 7 ns a reading), otherwise [`nanoseconds`] (some 25 ns).
#[inline]
pub(super) fn ticks() -> u64 {
    #[cfg(target_arch = "x86_64")]
    if tsc::is_steady() {
        // SAFETY: every x86-64 processor has the instruction.
        return unsafe { std::arch::x86_64::_rdtsc() };
    }
    nanoseconds()
}

/// The machine's monotonic clock (`CLOCK_MONOTONIC`) in nanoseconds; all processes of a machine read the same.
pub fn nanoseconds() -> u64 {
    let time = clock_gettime(ClockId::Monotonic);
    // The clock counts from the machine's start, so both parts are small and positive.
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

#[cfg(target_arch = "x86_64")]
mod tsc {
    use std::fs;
    use std::sync::OnceLock;

    /// The kernel keeps time with the counter only if it has found that it is invariant and equal on all processors.
    #[inline]
    pub(super) fn is_steady() -> bool {
        static STEADY: OnceLock<bool> = OnceLock::new();
        *STEADY.get_or_init(|| {
            let source = fs::read_to_string("/sys/devices/system/clocksource/clocksource0/current_clocksource");
            source.is_ok_and(|source| source.trim() == "tsc")
        })
    }
}

/// Converts [`ticks`] to nanoseconds by two readings of both clocks.
#[derive(Clone, Copy, Debug)]
pub(super) struct Scale {
    ticks: u64,
    nanoseconds: u64,
    /// Nanoseconds of a tick.
    rate: f64,
}

/// A reading of both clocks at the same time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Reading {
    pub(super) ticks: u64,
    pub(super) nanoseconds: u64,
}

impl Reading {
    pub(super) fn now() -> Self {
        Self { ticks: ticks(), nanoseconds: nanoseconds() }
    }
}

impl Scale {
    /// The scale through two readings. The longer the time between them, the more exact it is: both clocks are read
    /// within some 50 ns.
    pub(super) fn new(first: Reading, last: Reading) -> Self {
        let (ticks, nanoseconds) =
            (last.ticks.saturating_sub(first.ticks), last.nanoseconds.saturating_sub(first.nanoseconds));
        let rate = if ticks == 0 { 1.0 } else { nanoseconds as f64 / ticks as f64 };
        Self { ticks: last.ticks, nanoseconds: last.nanoseconds, rate }
    }

    /// The time of a reading of [`ticks`], in nanoseconds of the monotonic clock.
    pub(super) fn nanoseconds(&self, ticks: u64) -> u64 {
        let before = (self.ticks as f64 - ticks as f64) * self.rate;
        (self.nanoseconds as f64 - before).max(0.0) as u64
    }

    /// The reading of [`ticks`] at a time in nanoseconds of the monotonic clock, not after the last reading of the scale.
    pub(super) fn ticks(&self, nanoseconds: u64) -> u64 {
        self.ticks.saturating_sub(self.ticks_of(self.nanoseconds.saturating_sub(nanoseconds)))
    }

    /// The number of ticks in a length of time in nanoseconds.
    pub(super) fn ticks_of(&self, nanoseconds: u64) -> u64 {
        if self.rate > 0.0 { (nanoseconds as f64 / self.rate) as u64 } else { 0 }
    }

    /// The length of a time in ticks, in nanoseconds.
    pub(super) fn length(&self, ticks: u64) -> u64 {
        (ticks as f64 * self.rate) as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_scale_maps_ticks_between_and_outside_of_its_readings() {
        let (first, last) = (Reading { ticks: 1_000, nanoseconds: 500 }, Reading { ticks: 3_000, nanoseconds: 1_500 });
        let scale = Scale::new(first, last);
        assert_eq!(
            [500, 1_000, 2_000, 3_000, 4_000].map(|ticks| scale.nanoseconds(ticks)),
            [250, 500, 1_000, 1_500, 2_000]
        );
        assert_eq!(scale.length(20), 10);
        assert_eq!([250, 500, 1_500, 2_000].map(|time| scale.ticks(time)), [500, 1_000, 3_000, 3_000]);
        assert_eq!(scale.ticks_of(10), 20);
        let none = Scale::new(first, first);
        assert_eq!(none.nanoseconds(1_010), 510);
    }

    #[test]
    fn ticks_and_nanoseconds_never_run_backwards() {
        let mut before = Reading::now();
        for _ in 0..10_000 {
            let now = Reading::now();
            assert!(now.ticks >= before.ticks && now.nanoseconds >= before.nanoseconds, "{before:?}, {now:?}");
            before = now;
        }
    }
}
