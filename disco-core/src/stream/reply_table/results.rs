//! The results that workers send while a call runs.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::table::ReplyTable;
use crate::calling::{ResultSender, Sent};
use crate::channel::Signal;
use crate::context::{WINDOW, WINDOW_BYTES};
use crate::error::{Failure, Result};
use crate::id::WorkerId;
use crate::members::Members;
use crate::sync;
use crate::wire;

/// The calls that stream, by their commands.
#[derive(Debug, Default)]
pub(super) struct Streams(BTreeMap<u64, Stream>);

#[derive(Debug)]
struct Stream {
    sender: ResultSender,
    /// The workers at the call.
    members: Members,
    /// By places.
    workers: BTreeMap<WorkerId, Window>,
}

/// The results of one worker, as numbers of results and of bytes.
#[derive(Debug, Default)]
struct Window {
    /// Those that have arrived before an earlier one, by their numbers.
    early: BTreeMap<u64, Sent>,
    /// The number of all results, and the outcome of the call.
    end: Option<(u64, Result<(), Arc<Failure>>)>,
    /// Those that were passed to the receiver.
    arrived: Count,
    taken: Count,
    /// Of those that were taken, the ones that the worker knows of.
    told: Count,
}

#[derive(Clone, Copy, Debug, Default)]
struct Count {
    results: u64,
    bytes: u64,
}

impl Count {
    fn add(&mut self, bytes: u64) {
        self.results += 1;
        self.bytes += bytes;
    }
}

impl Window {
    fn arrive(&mut self, number: u64, sent: Sent) {
        let next = self.arrived.results;
        // A worker keeps within its window.
        if (next..next + WINDOW).contains(&number) {
            self.early.insert(number, sent);
        }
    }

    /// What the receiver gets next, if it has arrived.
    fn next(&mut self) -> Option<Sent> {
        let next = self.arrived.results;
        if let Some(sent) = self.early.remove(&next) {
            self.arrived.add(if let Sent::Value(_, bytes) = &sent { *bytes } else { 0 });
            return Some(sent);
        }
        let (_, outcome) = self.end.take_if(|(count, _)| *count <= next)?;
        Some(Sent::End(outcome))
    }

    /// The number of taken results, if the worker is to be told of it now: it may wait for that, or is about to.
    fn tell(&mut self) -> Option<u64> {
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

impl ReplyTable {
    /// From now on, the results of this command come to `sender`.
    pub(in crate::stream) fn begin_stream(&self, command: u64, sender: ResultSender) {
        let members = self.members();
        sync::lock(&self.streams).0.insert(command, Stream { sender, members, workers: BTreeMap::new() });
    }

    /// The workers at the call that streams; none once workers were lost.
    pub(crate) fn members_of_stream(&self, command: u64) -> Option<Members> {
        sync::lock(&self.streams).0.get(&command).map(|stream| stream.members.clone())
    }

    /// From now on, the results of this command are dropped.
    pub(crate) fn end_stream(&self, command: u64) {
        let ended = sync::lock(&self.streams).0.remove(&command);
        // Wakes whoever waits for results, without the lock.
        drop(ended);
    }

    /// Cancels all calls that stream.
    pub(crate) fn cancel_streams(&self, why: &Arc<str>) {
        let commands: Vec<u64> = sync::lock(&self.streams).0.keys().copied().collect();
        for command in commands {
            if let Err(error) = self.cancel(command, why) {
                tracing::debug!(%error, command, "a call that streams can't be cancelled");
            }
        }
    }

    /// [`ReplyTable::end_stream`] of all commands: no worker, or not all, can send results any more. Called without a lock,
    /// since it wakes code of the program's executor, which may use the session.
    pub(super) fn end_streams(&self) {
        let ended = std::mem::take(&mut *sync::lock(&self.streams));
        drop(ended);
    }

    /// A result of the worker with this place has arrived.
    pub(super) fn note_result(&self, from: WorkerId, command: u64, number: u64, bytes: &[u8]) {
        let sent = match wire::decode_value(bytes) {
            Ok(value) => Sent::Value(value, bytes.len() as u64),
            Err(error) => Sent::Unreadable(error),
        };
        self.change(from, command, |window| window.arrive(number, sent));
    }

    /// The controller has taken a result, with so many bytes, of the worker with this place.
    pub(crate) fn note_taken(&self, from: WorkerId, command: u64, bytes: u64) {
        self.change(from, command, |window| window.taken.add(bytes));
    }

    /// The worker with this place has executed a call, or left it out.
    pub(super) fn note_end_of_results(
        &self,
        from: WorkerId,
        command: u64,
        count: u64,
        outcome: Result<(), Arc<Failure>>,
    ) {
        self.change(from, command, |window| window.end = Some((count, outcome)));
    }

    /// Changes the window of a worker. Passes on what comes next of the worker, without the lock: it wakes code of the
    /// program's executor, which may use the session. The notices of one worker come one after the other. Tells the
    /// worker of taken results if that is due.
    fn change(&self, worker: WorkerId, command: u64, change: impl FnOnce(&mut Window)) {
        let (sender, next, taken) = {
            let mut streams = sync::lock(&self.streams);
            let Some(stream) = streams.0.get_mut(&command) else { return };
            let window = stream.workers.entry(worker).or_default();
            change(window);
            let next: Vec<Sent> = std::iter::from_fn(|| window.next()).collect();
            let sender = (!next.is_empty()).then(|| stream.sender.clone());
            (sender, next, window.tell())
        };
        if let Some(sender) = sender {
            // Its receiver may be dropped.
            next.into_iter().for_each(|sent| _ = sender.unbounded_send((worker, sent)));
        }
        let Some(count) = taken else { return };
        let lanes = self.lanes();
        if lanes.is_empty() {
            return;
        }
        if let Err(error) = lanes.owner(worker).signal(Signal::Taken { worker, command, count }) {
            tracing::debug!(%error, %worker, command, "can't be told that results were taken");
        }
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
