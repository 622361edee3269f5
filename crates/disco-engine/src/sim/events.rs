//! Parts of every simulated world: a virtual clock, scheduled events in the order of time and then of scheduling, random
//! numbers, and the first violation of a rule.

use std::cmp::{Ordering, Reverse};
use std::collections::BinaryHeap;
use std::time::{Duration, Instant};

use super::random::Random;

/// Times are whole numbers of a unit since the start.
pub(super) struct Events<T> {
    base: Instant,
    unit: Duration,
    scheduled: BinaryHeap<Reverse<Scheduled<T>>>,
    count: u64,
    pub(super) random: Random,
    /// The first violated rule.
    pub(super) broken: Option<String>,
}

struct Scheduled<T> {
    at: u64,
    number: u64,
    what: T,
}

impl<T> Events<T> {
    pub(super) fn new(unit: Duration, seed: u64) -> Self {
        let (base, random) = (Instant::now(), Random::new(seed));
        Self { base, unit, scheduled: BinaryHeap::new(), count: 0, random, broken: None }
    }

    /// Schedules an event.
    pub(super) fn push(&mut self, at: u64, what: T) {
        self.count += 1;
        self.scheduled.push(Reverse(Scheduled { at, number: self.count, what }));
    }

    /// Takes the next event, with its time; `None` also after a violation.
    pub(super) fn pop(&mut self) -> Option<(u64, T)> {
        let next = if self.broken.is_none() { self.scheduled.pop() } else { None };
        next.map(|Reverse(Scheduled { at, what, .. })| (at, what))
    }

    /// Records that a rule is violated at a time.
    pub(super) fn record_violation(&mut self, at: u64, rule: &str) {
        let micros = (self.instant(at) - self.base).as_micros();
        self.broken.get_or_insert_with(|| format!("at {micros} us: {rule}"));
    }

    /// The instant of a virtual time.
    pub(super) fn instant(&self, at: u64) -> Instant {
        self.base + Duration::from_nanos(at * self.unit.as_nanos() as u64)
    }

    /// The virtual time of an instant, rounded up.
    pub(super) fn time_of(&self, instant: Instant) -> u64 {
        let since = instant.saturating_duration_since(self.base);
        since.as_nanos().div_ceil(self.unit.as_nanos()) as u64
    }
}

impl<T> PartialEq for Scheduled<T> {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl<T> Eq for Scheduled<T> {}

impl<T> PartialOrd for Scheduled<T> {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl<T> Ord for Scheduled<T> {
    fn cmp(&self, other: &Self) -> Ordering {
        (self.at, self.number).cmp(&(other.at, other.number))
    }
}
