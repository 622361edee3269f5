//! The calls that stream, with the results that have arrived.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::calling::{ResultSender, Sent};
use crate::context::{WINDOW, WINDOW_BYTES};
use crate::error::{Failure, Result};
use crate::id::WorkerId;
use crate::members::Members;

/// The calls that stream, by their commands.
#[derive(Debug, Default)]
pub(super) struct Streams(pub(super) BTreeMap<u64, Stream>);

#[derive(Debug)]
pub(super) struct Stream {
    pub(super) sender: ResultSender,
    /// The workers at the call.
    pub(super) members: Members,
    /// By places.
    pub(super) workers: BTreeMap<WorkerId, Window>,
}

/// The results of one worker, as numbers of results and of bytes.
#[derive(Debug, Default)]
pub(super) struct Window {
    /// Results that have arrived before an earlier result, by their numbers.
    early: BTreeMap<u64, Sent>,
    /// The number of all results, and the outcome of the call.
    pub(super) end: Option<(u64, Result<(), Arc<Failure>>)>,
    /// Results that were passed to the receiver.
    arrived: Count,
    pub(super) taken: Count,
    /// Taken results that the worker knows of.
    told: Count,
}

#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Count {
    results: u64,
    bytes: u64,
}

impl Count {
    pub(super) fn add(&mut self, bytes: u64) {
        self.results += 1;
        self.bytes += bytes;
    }
}

impl Window {
    pub(super) fn arrive(&mut self, number: u64, sent: Sent) {
        let next = self.arrived.results;
        // A worker keeps within its window.
        if (next..next + WINDOW).contains(&number) {
            self.early.insert(number, sent);
        }
    }

    /// What the receiver gets next, if it has arrived.
    pub(super) fn next(&mut self) -> Option<Sent> {
        let next = self.arrived.results;
        if let Some(sent) = self.early.remove(&next) {
            self.arrived.add(if let Sent::Value(_, bytes) = &sent { *bytes } else { 0 });
            return Some(sent);
        }
        let (_, outcome) = self.end.take_if(|(count, _)| *count <= next)?;
        Some(Sent::End(outcome))
    }

    /// The number of taken results, if the worker is to be told of it now: it may wait for that, or is about to.
    pub(super) fn tell(&mut self) -> Option<u64> {
        let waits = self.arrived.results - self.told.results >= WINDOW
            || self.arrived.bytes - self.told.bytes >= WINDOW_BYTES
            || self.taken.results - self.told.results >= WINDOW / 2;
        let is_due = waits && self.taken.results > self.told.results;
        is_due.then(|| {
            self.told = self.taken;
            self.told.results
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::value::Value;

    #[test]
    fn results_and_their_end_are_passed_on_in_order_in_whichever_order_they_arrive() {
        let orders = [[0, 1, 2, 3], [3, 2, 1, 0], [3, 0, 2, 1], [1, 3, 0, 2], [2, 0, 3, 1]];
        for order in orders {
            let (mut window, mut passed) = (Window::default(), Vec::new());
            for number in order {
                match number {
                    3 => window.end = Some((3, Ok(()))),
                    _ => window.arrive(number, Sent::Value(Value::Int(number as i64), 8)),
                }
                window.arrive(WINDOW + 3, Sent::Value(Value::None, 8));
                passed.extend(std::iter::from_fn(|| window.next()).map(|sent| match sent {
                    Sent::Value(Value::Int(number), 8) => number,
                    Sent::End(Ok(())) => 3,
                    other => panic!("{other:?}"),
                }));
            }
            assert_eq!(passed, [0, 1, 2, 3], "{order:?}");
        }
    }

    #[test]
    fn a_worker_is_told_of_taken_results_before_it_waits_for_them() {
        // A worker that sends until its window is full, and a controller that takes results in any order of events.
        for (seed, size) in (0..200).flat_map(|seed| [1, 100_000, 2 << 20].map(|size| (seed, size))) {
            let (mut window, mut sent, mut known, mut random) = (Window::default(), 0, 0, seed as u32 + 1);
            let outstanding = |sent, known| (sent - known, (sent - known) * size);
            let mut told = |window: &mut Window| {
                if let Some(count) = window.tell() {
                    known = count;
                }
                known
            };
            for _ in 0..500 {
                random = random.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                let now = told(&mut window);
                let (count, bytes) = outstanding(sent, now);
                match random >> 30 {
                    0 | 1 if count < WINDOW && bytes < WINDOW_BYTES => sent += 1,
                    2 if window.arrived.results < sent => window.arrived.add(size),
                    _ if window.taken.results < window.arrived.results => window.taken.add(size),
                    _ => {}
                }
                let now = told(&mut window);
                // All has arrived, and the worker waits: only because of results that are not taken.
                let (count, bytes) = outstanding(sent, now);
                if window.arrived.results == sent && (count >= WINDOW || bytes >= WINDOW_BYTES) {
                    assert_eq!(now, window.taken.results);
                }
            }
            assert!(sent > 0);
        }
    }
}
