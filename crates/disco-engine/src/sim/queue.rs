//! Scheduled events, in the order of time and then of scheduling.

use std::cmp::{Ordering, Reverse};
use std::collections::BinaryHeap;

/// A queue of events at virtual times.
pub(super) struct Queue<T> {
    events: BinaryHeap<Reverse<Scheduled<T>>>,
    count: u64,
}

struct Scheduled<T> {
    at: u64,
    number: u64,
    what: T,
}

impl<T> Queue<T> {
    pub(super) fn new() -> Self {
        Self { events: BinaryHeap::new(), count: 0 }
    }

    /// Schedules an event.
    pub(super) fn push(&mut self, at: u64, what: T) {
        self.count += 1;
        self.events.push(Reverse(Scheduled { at, number: self.count, what }));
    }

    /// Takes the next event, with its time.
    pub(super) fn pop(&mut self) -> Option<(u64, T)> {
        self.events.pop().map(|Reverse(Scheduled { at, what, .. })| (at, what))
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
