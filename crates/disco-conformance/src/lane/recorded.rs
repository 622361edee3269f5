//! An inbox that records all events.

use std::sync::{Condvar, Mutex, PoisonError};
use std::time::Duration;

use disco_core::channel::{Notice, Reply};
use disco_core::sync;
use disco_core::{Error, Inbox, WorkerId, WorkerRange};

/// A call of the inbox.
#[derive(Clone, Debug)]
pub(super) enum Event {
    Reply(WorkerId, u64, Reply),
    Notice(WorkerId, Notice),
    Room(WorkerRange),
    Left(WorkerRange),
    Lost(WorkerRange, Error),
}

/// All calls of the inbox, in order.
#[derive(Debug, Default)]
pub(super) struct RecordedEvents {
    events: Mutex<Vec<Event>>,
    more: Condvar,
}

impl RecordedEvents {
    /// The events so far.
    pub(super) fn so_far(&self) -> Vec<Event> {
        sync::lock(&self.events).clone()
    }

    /// Waits for at most `limit` until `enough` returns true for the events. Returns whether it does.
    pub(super) fn wait(&self, limit: Duration, enough: impl Fn(&[Event]) -> bool) -> bool {
        let events = sync::lock(&self.events);
        let waited = self.more.wait_timeout_while(events, limit, |events| !enough(events));
        !waited.unwrap_or_else(PoisonError::into_inner).1.timed_out()
    }

    fn push(&self, event: Event) {
        sync::lock(&self.events).push(event);
        self.more.notify_all();
    }
}

impl Inbox for RecordedEvents {
    fn reply(&self, from: WorkerId, seq: u64, reply: Reply) {
        self.push(Event::Reply(from, seq, reply));
    }

    fn notice(&self, from: WorkerId, notice: Notice) {
        self.push(Event::Notice(from, notice));
    }

    fn room(&self, workers: WorkerRange) {
        self.push(Event::Room(workers));
    }

    fn left(&self, workers: WorkerRange) {
        self.push(Event::Left(workers));
    }

    fn lost(&self, workers: WorkerRange, why: Error) {
        self.push(Event::Lost(workers, why));
    }
}
