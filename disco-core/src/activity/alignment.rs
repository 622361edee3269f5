//! The alignment of a machine's clock with the controller's.

/// Largest difference of the rates of two machines' clocks, in parts per million: the crystals of machines are within 100
/// of the right rate, and time services keep clocks closer.
const MAX_DRIFT_PPM: u64 = 200;

/// The shifts that a measurement allows: the numbers, in nanoseconds, that may have to be added to the time on a machine's
/// own clock to get the time on another clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shifts {
    least: i128,
    most: i128,
}

/// The alignment of a machine's clock at one time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[expect(clippy::exhaustive_structs, reason = "a measurement is these three numbers")]
pub struct ClockPoint {
    /// The time on the machine's own clock, in nanoseconds.
    pub time: u64,
    /// Nanoseconds to add to that time to get the time on the controller's clock.
    pub shift: i64,
    /// Largest error of the sum, in nanoseconds.
    pub error: u64,
}

/// The alignment of a machine's clock with the controller's, as measured at some times. Empty for the controller's own
/// machine, and without a measurement.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Alignment {
    /// In the order of their times.
    points: Vec<ClockPoint>,
}

impl Alignment {
    /// Largest number of points that are kept.
    pub const MAX_POINTS: usize = 64;

    /// The alignment with these points, sorted by time; points after the first [`Self::MAX_POINTS`] are dropped.
    pub fn new(points: impl IntoIterator<Item = ClockPoint>) -> Self {
        let mut points: Vec<ClockPoint> = points.into_iter().take(Self::MAX_POINTS).collect();
        points.sort_by_key(|point| point.time);
        Self { points }
    }

    /// Whether there is no measurement.
    pub fn is_empty(&self) -> bool {
        self.points.is_empty()
    }

    /// The measurements, in the order of their times.
    pub fn points(&self) -> &[ClockPoint] {
        &self.points
    }

    /// Nanoseconds to add to `time` on the machine's own clock, and the largest error of the sum in nanoseconds. The error
    /// grows with the distance from the nearest point by the drift that clocks may have. 0 and 0 without a measurement.
    pub fn at(&self, time: u64) -> (i64, u64) {
        let after = self.points.partition_point(|point| point.time <= time);
        let before = after.checked_sub(1).map(|before| self.points[before]);
        match (before, self.points.get(after)) {
            (None, None) => (0, 0),
            (Some(point), None) => (point.shift, point.error_at(time)),
            (None, Some(point)) => (point.shift, point.error_at(time)),
            (Some(before), Some(after)) => between(before, *after, time),
        }
    }

    /// The alignment with a third clock: this machine is aligned with a second one, whose alignment with the third one is
    /// `next`. Shifts and errors add up. An empty alignment changes nothing.
    #[must_use]
    pub fn then(&self, next: &Self) -> Self {
        if self.is_empty() {
            return next.clone();
        }
        let points = self.points.iter().map(|point| {
            let (shift, error) = next.at(point.time.saturating_add_signed(point.shift));
            let (shift, error) = (point.shift.saturating_add(shift), point.error.saturating_add(error));
            ClockPoint { shift, error, ..*point }
        });
        Self { points: points.collect() }
    }
}

impl ClockPoint {
    /// The shifts that the point allows at another time on the machine's own clock.
    pub fn shifts_at(&self, time: u64) -> Shifts {
        let (shift, error) = (i128::from(self.shift), i128::from(self.error_at(time)));
        Shifts::new(shift - error, shift + error)
    }

    /// Largest error at another time.
    fn error_at(&self, time: u64) -> u64 {
        self.error.saturating_add(drift(self.time.abs_diff(time)))
    }
}

impl Shifts {
    /// The shifts from `least` to `most`.
    pub const fn new(least: i128, most: i128) -> Self {
        Self { least, most }
    }

    /// The shifts after `time`, in nanoseconds, in which the clocks may have drifted apart.
    #[must_use]
    pub fn after(self, time: u64) -> Self {
        let drift = i128::from(drift(time));
        Self { least: self.least - drift, most: self.most + drift }
    }

    /// The shifts that both measurements allow. `None` if no shift is in both: one of the clocks has jumped between the
    /// measurements, for instance because its machine was suspended.
    pub fn and(self, other: Self) -> Option<Self> {
        let (least, most) = (self.least.max(other.least), self.most.min(other.most));
        (least <= most).then_some(Self { least, most })
    }

    /// The middle of the shifts, and its largest error.
    pub fn middle(self) -> (i64, u64) {
        let middle = self.least + (self.most - self.least) / 2;
        (clamp(middle), u64::try_from((self.most - middle).max(0)).unwrap_or(u64::MAX))
    }
}

/// The middle of the shifts that both points allow, and its largest error.
fn between(before: ClockPoint, after: ClockPoint, time: u64) -> (i64, u64) {
    let (first, last) = (before.shifts_at(time), after.shifts_at(time));
    if let Some(both) = first.and(last) {
        return both.middle();
    }
    // A clock has jumped at an unknown time between the points.
    let jump = i128::from(after.shift) - i128::from(before.shift);
    // Saturates only for jumps of centuries, which a damaged file may have.
    let part = i128::from(time - before.time).saturating_mul(jump);
    let shift = i128::from(before.shift) + part / i128::from((after.time - before.time).max(1));
    let error = (first.most.max(last.most) - shift).max(shift - first.least.min(last.least));
    (clamp(shift), u64::try_from(error).unwrap_or(u64::MAX))
}

fn clamp(shift: i128) -> i64 {
    shift.clamp(i64::MIN.into(), i64::MAX.into()) as i64
}

/// How far two clocks may drift apart in a time, in nanoseconds.
fn drift(time: u64) -> u64 {
    (u128::from(time) * u128::from(MAX_DRIFT_PPM)).div_ceil(1_000_000) as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn jumps_of_any_size_are_accepted() {
        let point = |time, shift| ClockPoint { time, shift, error: 0 };
        let (shift, _) = between(point(0, i64::MIN), point(u64::MAX, i64::MAX), u64::MAX - 1);
        assert!(shift > i64::MIN);
    }

    fn point(time: u64, shift: i64, error: u64) -> ClockPoint {
        ClockPoint { time, shift, error }
    }

    #[test]
    fn the_error_grows_with_the_distance_from_the_points() {
        let alignment = Alignment::new([point(1_000_000, 500, 10), point(3_000_000, 600, 20)]);
        assert_eq!(alignment.at(0), (500, 210));
        assert_eq!(alignment.at(1_000_000), (500, 10));
        // The first point allows 300..=700, the second 370..=830.
        assert_eq!(alignment.at(1_950_000), (535, 165));
        assert_eq!(alignment.at(4_000_000), (600, 220));
        assert_eq!(Alignment::default().at(7), (0, 0));
    }

    #[test]
    fn between_the_sides_of_a_jump_the_error_covers_both() {
        let alignment = Alignment::new([point(0, 0, 5), point(1_000, 1_000_000, 5)]);
        let (shift, error) = alignment.at(500);
        assert!((shift - 500_000).abs() <= 1, "{shift}");
        assert!(shift.unsigned_abs() <= error && 1_000_000 <= shift.unsigned_abs() + error, "{shift} ± {error}");
    }

    #[test]
    fn shifts_and_errors_of_a_way_add_up() {
        let child = Alignment::new([point(100, 1_000, 3)]);
        let parent = Alignment::new([point(1_100, -50, 4)]);
        assert_eq!(child.then(&parent).points(), [point(100, 950, 7)]);
        assert_eq!(Alignment::default().then(&parent), parent);
        assert_eq!(child.then(&Alignment::default()), child);
    }

    #[test]
    fn extreme_points_do_not_overflow() {
        let alignment = Alignment::new([point(0, i64::MIN, u64::MAX), point(u64::MAX, i64::MAX, 0), point(5, 0, 0)]);
        for time in [0, 1, 5, 6, u64::MAX] {
            _ = alignment.then(&alignment).at(time);
        }
    }
}
