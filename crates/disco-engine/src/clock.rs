//! Comparison of the clocks of two machines by the times in heartbeats.
//!
//! ```text
//! controller's clock    t1 ──▶ heartbeat                     t4: the answer comes
//!                                   ╲                       ╱
//! node's clock                       t2: it comes    t3 ──▶ the answer, with t1 and t3 - t2
//! ```
//!
//! Since t1 is before t2 and t3 before t4, the shift, which is the time to add to the node's clock, is at least t1 - t2 and
//! at most t4 - t3, however long the two messages take. The estimate is the range of shifts that all heartbeats allow, each
//! widened by the drift since that heartbeat. The heartbeat with the shortest round trip therefore decides, and the error is
//! at most half of that round trip.

use std::sync::Arc;
use std::time::{Duration, Instant};

use disco_core::activity::{self, Alignment, ClockPoint, Shifts};
use disco_core::wire::Times;

/// Number of round trips right after the start.
const FIRST_ROUND_TRIPS: u32 = 8;
/// Number of readings of both clocks, of which the shortest counts.
const READINGS: u32 = 8;
/// Least time between two points of an alignment, in nanoseconds. Doubled whenever there are too many.
const SPACING: u64 = 1_000_000_000;

/// The monotonic clock of this machine, in nanoseconds, at an instant: the clock of records.
#[derive(Clone)]
pub struct MachineClock(Arc<dyn Fn(Instant) -> u64 + Send + Sync>);

impl MachineClock {
    /// A clock that counts from an instant, for an end that compares it with no other machine's.
    pub(crate) fn since(start: Instant) -> Self {
        Self::through(start, 1)
    }

    /// The clock of records. [`Instant`] reads the same clock, so the difference never changes.
    pub fn of_records() -> Self {
        let reading = |_| {
            let (before, time) = (Instant::now(), activity::nanoseconds());
            (before.elapsed(), before, time)
        };
        let readings = (0..READINGS).map(reading).min_by_key(|(took, ..)| *took);
        let (_, instant, time) = readings.unwrap_or_else(|| reading(0));
        Self::through(instant, time)
    }

    /// The clock that shows `time` at an instant.
    fn through(instant: Instant, time: u64) -> Self {
        Self(Arc::new(move |at| match at.checked_duration_since(instant) {
            Some(after) => time.saturating_add(nanoseconds(after)),
            None => time.saturating_sub(nanoseconds(instant.saturating_duration_since(at))),
        }))
    }

    #[cfg(test)]
    pub(crate) fn new(time: impl Fn(Instant) -> u64 + Send + Sync + 'static) -> Self {
        Self(Arc::new(time))
    }

    pub(crate) fn at(&self, instant: Instant) -> u64 {
        (self.0)(instant)
    }

    /// The times of a controller's heartbeat.
    pub(crate) fn question(&self, now: Instant) -> Times {
        Times { sent: self.at(now), ..Times::default() }
    }
}

disco_core::format_as!(Debug for MachineClock, |_| "MachineClock");

fn nanoseconds(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

/// The last heartbeat of the controller, as its node remembers it.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Echo {
    sent: u64,
    /// When the heartbeat came, on the node's clock.
    received: u64,
}

impl Echo {
    /// Records a heartbeat that has come.
    pub(crate) fn note(&mut self, times: Times, now: u64) {
        *self = Self { sent: times.sent, received: now };
    }

    /// The times of the node's heartbeat that is sent now.
    pub(crate) fn answer(self, now: u64) -> Times {
        Times { sent: now, echo: self.sent, held: now.saturating_sub(self.received) }
    }
}

/// The estimate of the time to add to the clock of a node to get the time here.
#[derive(Clone, Debug)]
pub(crate) struct Estimate {
    /// The time of the last heartbeat on the node's clock, and the shifts that all heartbeats allow then.
    last: Option<(u64, Shifts)>,
    /// Number of round trips.
    round_trips: u32,
    points: Vec<ClockPoint>,
    spacing: u64,
}

impl Default for Estimate {
    fn default() -> Self {
        Self { last: None, round_trips: 0, points: Vec::new(), spacing: SPACING }
    }
}

impl Estimate {
    /// Adds a heartbeat of the node that has come now, on the clock here. Heartbeats without an answer, or with an
    /// impossible one, change nothing.
    pub(crate) fn add(&mut self, times: Times, now: u64) {
        let Times { sent, echo, held } = times;
        let away = now.checked_sub(echo).filter(|away| *away >= held && echo > 0 && sent > 0);
        let Some(away) = away else { return };
        let [now, echo, held, answered] = [now, echo, held, sent].map(i128::from);
        // Each limit holds at some time between the question and now.
        let measured = Shifts::new(echo - (answered - held), now - answered).after(away);
        let shifts = match self.last {
            // A clock that has jumped starts the estimate again.
            Some((before, known)) if before <= sent => known.after(sent - before).and(measured).unwrap_or(measured),
            _ => measured,
        };
        self.last = Some((sent, shifts));
        self.round_trips = self.round_trips.saturating_add(1);
        let (shift, error) = shifts.middle();
        self.note(ClockPoint { time: sent, shift, error });
    }

    /// Whether the node is asked again at once: the first round trips make the error small.
    pub(crate) fn is_young(&self) -> bool {
        self.round_trips < FIRST_ROUND_TRIPS
    }

    fn note(&mut self, point: ClockPoint) {
        if let [.., before, _] = &self.points[..]
            && point.time.saturating_sub(before.time) < self.spacing
        {
            self.points.pop();
        }
        self.points.push(point);
        if self.points.len() > Alignment::MAX_POINTS {
            let mut at = 0;
            // The first and the last point are kept: their number is odd.
            self.points.retain(|_| {
                at += 1;
                at % 2 == 1
            });
            self.spacing = self.spacing.saturating_mul(2);
        }
    }

    /// The alignment of the node's clock with the one here. Later round trips also make earlier points more exact.
    pub(crate) fn alignment(&self) -> Alignment {
        let mut points = self.points.clone();
        for at in (1..points.len()).rev() {
            let (point, next) = (points[at - 1], points[at]);
            // Otherwise a clock has jumped.
            if let Some(both) = point.shifts_at(point.time).and(next.shifts_at(point.time)) {
                (points[at - 1].shift, points[at - 1].error) = both.middle();
            }
        }
        Alignment::new(points)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sim::Random;

    const SECOND: u64 = 1_000_000_000;
    /// The true shift of the node's clock at the start.
    const SHIFT: i128 = -7_000_000_000;

    /// A node's clock that drifts.
    struct Drifting {
        /// Parts per million.
        rate: i128,
    }

    impl Drifting {
        /// The node's time at a time of the controller's.
        fn at(&self, time: u64) -> u64 {
            let time = i128::from(time);
            u64::try_from(time - SHIFT + time * self.rate / 1_000_000).unwrap()
        }

        /// The true shift at a time of the node's.
        fn shift(&self, node: u64) -> i128 {
            // `node` = time - SHIFT + time * rate / 10^6
            let time = (i128::from(node) + SHIFT) * 1_000_000 / (1_000_000 + self.rate);
            time - i128::from(node)
        }
    }

    /// A heartbeat at `time` that takes these times, and its answer after `held`.
    fn round_trip(estimate: &mut Estimate, clock: &Drifting, time: u64, (down, held, up): (u64, u64, u64)) -> u64 {
        let mut echo = Echo::default();
        echo.note(Times { sent: time, ..Times::default() }, clock.at(time + down));
        let end = time + down + held + up;
        estimate.add(echo.answer(clock.at(time + down + held)), end);
        end
    }

    #[test]
    fn the_true_shift_is_within_the_error_with_drift_and_asymmetric_delays() {
        for seed in 0..200 {
            let mut random = Random::new(seed);
            let clock = Drifting { rate: i128::from(random.of(0..401)) - 200 };
            // One direction may be much slower than the other one, always or sometimes.
            let slow = [random.of(1..50_000_000), random.of(1..5_000_000)];
            let (mut estimate, mut time, mut checked) = (Estimate::default(), SECOND, Vec::new());
            for _ in 0..300 {
                let way = |random: &mut Random, slow| 20_000 + if random.percent(70) { random.of(0..slow) } else { 0 };
                let (down, up) = (way(&mut random, slow[0]), way(&mut random, slow[1]));
                let held = if random.percent(80) { random.of(0..50_000) } else { random.of(0..SECOND) };
                time = round_trip(&mut estimate, &clock, time, (down, held, up));
                checked.push(clock.at(time - random.of(0..SECOND)));
                time += random.of(0..2 * SECOND);
            }
            let alignment = estimate.alignment();
            assert!(alignment.points().len() <= Alignment::MAX_POINTS && alignment.points().len() > 16);
            for node in checked {
                let ((shift, error), truth) = (alignment.at(node), clock.shift(node));
                let off = (i128::from(shift) - truth).unsigned_abs();
                // Both clocks are in whole nanoseconds.
                assert!(off <= u128::from(error) + 2, "seed {seed}: {shift} ± {error}, and it is {truth}");
            }
        }
    }

    #[test]
    fn the_error_is_half_of_the_shortest_round_trip() {
        let (mut estimate, clock) = (Estimate::default(), Drifting { rate: 0 });
        for (time, down) in [(SECOND, 900_000), (SECOND + 10_000_000, 10_000), (SECOND + 20_000_000, 5_000_000)] {
            round_trip(&mut estimate, &clock, time, (down, 0, 30_000));
        }
        let last = *estimate.alignment().points().last().unwrap();
        // 40 µs of round trip, and the drift of 15 ms.
        assert!((20_000..24_000).contains(&last.error), "{last:?}");
        assert!((i128::from(last.shift) - SHIFT).unsigned_abs() <= last.error.into(), "{last:?}");
    }

    #[test]
    fn a_jump_of_a_clock_starts_the_estimate_again() {
        let (mut estimate, clock) = (Estimate::default(), Drifting { rate: 0 });
        let mut time = SECOND;
        for _ in 0..10 {
            time = round_trip(&mut estimate, &clock, time, (20_000, 0, 20_000)) + SECOND;
        }
        // The controller's machine was suspended: its clock stood still for 3 s of the node's.
        let behind = 3 * SECOND;
        let (sent, down, up) = (time, 20_000, 20_000);
        let mut echo = Echo::default();
        echo.note(Times { sent, ..Times::default() }, clock.at(sent + down) + behind);
        estimate.add(echo.answer(clock.at(sent + down) + behind), sent + down + up);
        let last = *estimate.alignment().points().last().unwrap();
        let truth = SHIFT - i128::from(behind);
        assert!(
            (i128::from(last.shift) - truth).unsigned_abs() <= last.error.into() && last.error < 30_000,
            "{last:?}"
        );
    }

    #[test]
    fn impossible_times_change_nothing() {
        let mut estimate = Estimate::default();
        for (sent, echo, held) in [(0, 0, 0), (5, 0, 0), (5, 200, 0), (5, 10, 91), (0, 10, 0), (u64::MAX, 10, u64::MAX)]
        {
            estimate.add(Times { sent, echo, held }, 100);
        }
        assert!(estimate.alignment().is_empty());
        estimate.add(Times { sent: u64::MAX, echo: 10, held: 0 }, 100);
        estimate.add(Times { sent: 1, echo: 10, held: 0 }, u64::MAX);
        assert_eq!(estimate.alignment().points().len(), 2);
    }

    #[test]
    fn the_clock_of_records_follows_instants() {
        let clock = MachineClock::of_records();
        for _ in 0..100 {
            let (before, instant, after) = (activity::nanoseconds(), Instant::now(), activity::nanoseconds());
            let time = clock.at(instant);
            // The readings at the start took less than a millisecond once.
            assert!(before.saturating_sub(1_000_000) <= time && time <= after + 1_000_000, "{before} {time} {after}");
        }
        assert!(clock.at(Instant::now() + Duration::from_secs(1)) > clock.at(Instant::now()));
    }
}
