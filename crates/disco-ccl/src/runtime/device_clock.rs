//! The clock of a stream's events, and its alignment with the host's clock.

use disco_core::activity::Shifts;

/// Resolution of the times of events, in nanoseconds: CUDA documents some 0.5 µs for each of two events.
const RESOLUTION: u64 = 1_000;

/// The alignment of the device's clock. Each piece of work limits it from two sides: on the host's clock, the work began
/// after its launch, and was over when the host saw its end.
#[derive(Debug)]
pub(super) struct DeviceClock {
    /// Nanoseconds to add to a time on the device's clock to get the time on the host's clock, at `last`.
    shifts: Shifts,
    last: u64,
}

/// A piece of work. Times of the device are nanoseconds since the clock's first event.
#[derive(Clone, Copy, Debug)]
pub(super) struct Measured {
    pub(super) start: u64,
    pub(super) length: u64,
    /// Time since the event from which `start` was measured: its rounding grows with it.
    pub(super) since: u64,
    /// The host's time before the launch, and when the host saw the end.
    pub(super) launched: u64,
    pub(super) seen: u64,
}

impl DeviceClock {
    /// The clock of which the first event was recorded after the host's time `launched`.
    pub(super) fn new(launched: u64) -> Self {
        Self { shifts: Shifts::new(launched.into(), u64::MAX.into()), last: 0 }
    }

    /// The start of a piece of work on the host's clock, and its largest error, in nanoseconds.
    pub(super) fn align(&mut self, work: Measured) -> (u64, u64) {
        let end = work.start.saturating_add(work.length);
        // The driver returns 32-bit floats, with 24 bits for the number.
        let rounding = i128::from(RESOLUTION + (work.since.saturating_add(work.length) >> 23));
        let least = i128::from(work.launched) - i128::from(work.start) - rounding;
        let most = i128::from(work.seen) - i128::from(end) + rounding;
        let limits = Shifts::new(least, most).after(work.length);
        // If no shift fits, one of the clocks has jumped: the older limits are void.
        let known = self.shifts.after(end.abs_diff(self.last));
        let shifts = known.and(limits).unwrap_or(limits);
        // Limits at a later time stay as they are, for instance those of the anchor behind this piece.
        if end >= self.last {
            (self.shifts, self.last) = (shifts, end);
        }
        let (shift, error) = shifts.after(work.length).middle();
        (work.start.saturating_add_signed(shift), error)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A device whose clock began at 10 ms of the host's clock.
    const SHIFT: u64 = 10_000_000;

    fn work(start: u64, length: u64, [before, after]: [u64; 2]) -> Measured {
        let (launched, seen) = (SHIFT + start - before, SHIFT + start + length + after);
        Measured { start, length, since: start, launched, seen }
    }

    #[test]
    fn the_start_is_within_the_error_and_an_anchor_makes_it_small() {
        let mut clock = DeviceClock::new(SHIFT - 4_000);
        // An operation whose end is seen late.
        let (start, error) = clock.align(work(50_000, 20_000, [40_000, 3_000_000]));
        assert!(start.abs_diff(SHIFT + 50_000) <= error && error < 1_600_000, "{start} ± {error}");
        // An anchor.
        clock.align(work(4_000_000, 0, [5_000, 9_000]));
        let (start, error) = clock.align(work(4_100_000, 10_000, [1_000_000, 1_000_000]));
        assert!(start.abs_diff(SHIFT + 4_100_000) <= error && error < 10_000, "{start} ± {error}");
        // An operation that is read after the anchor behind it, which stays as exact as it was.
        clock.align(work(10_000_000, 0, [5_000, 9_000]));
        let (start, error) = clock.align(work(5_000_000, 10_000, [1_000_000, 1_000_000]));
        assert!(start.abs_diff(SHIFT + 5_000_000) <= error && error < 11_000, "{start} ± {error}");
        let (start, error) = clock.align(work(10_100_000, 0, [1_000_000, 1_000_000]));
        assert!(start.abs_diff(SHIFT + 10_100_000) <= error && error < 10_000, "{start} ± {error}");
        // Clocks drift apart by 200 ppm at most.
        let (_, error) = clock.align(work(1_010_100_000, 0, [1_000_000, 1_000_000]));
        assert!((200_000..220_000).contains(&error), "{error}");
    }

    #[test]
    fn after_a_jump_of_the_host_clock_only_the_new_limits_count() {
        let mut clock = DeviceClock::new(SHIFT);
        clock.align(work(1_000, 0, [1_000, 1_000]));
        let jumped = Measured { start: 2_000_000, length: 500, since: 0, launched: 900_000_000, seen: 900_004_500 };
        let (start, error) = clock.align(jumped);
        assert!((900_000_000..900_004_000).contains(&start) && error < 4_000, "{start} ± {error}");
    }

    #[test]
    fn extreme_times_do_not_overflow() {
        let mut clock = DeviceClock::new(u64::MAX);
        for time in [0, u64::MAX] {
            clock.align(Measured { start: time, length: u64::MAX, since: time, launched: time, seen: time });
        }
    }
}
