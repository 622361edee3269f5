//! The results that workers send while a call runs.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::streams::{Stream, Window};
use super::table::ReplyTable;
use crate::calling::{ResultSender, Sent};
use crate::channel::Signal;
use crate::error::{Failure, Result};
use crate::id::WorkerId;
use crate::members::Members;
use crate::sync;
use crate::wire;

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

    /// Changes the window of a worker. Then passes the worker's next results and its end to the receiver, as far as they
    /// have arrived, and tells the worker of taken results if that is due. Does so without the lock: it wakes code of the
    /// program's executor, which may use the session. The notices of one worker come one after the other.
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
