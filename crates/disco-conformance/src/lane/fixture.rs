//! A started lane and its recorded events.

use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use disco_core::channel::{FrameSize, Signal};
use disco_core::{Channel, Command, Frame, Value, WorkerRange};

use super::frames::plain;
use super::harness::Harness;
use super::recorded::{Event, RecordedEvents};
use super::role::Role;
use crate::waiting;

/// The result of a step of a case; the error is a text.
pub(super) type CheckResult<T> = Result<T, String>;

pub(super) struct Fixture {
    pub(super) lane: Arc<dyn Channel>,
    pub(super) events: Arc<RecordedEvents>,
    pub(super) workers: Range<u32>,
    /// Timeout of one step of a case.
    pub(super) timeout: Duration,
}

impl Fixture {
    /// Starts a lane to these workers.
    pub(super) fn start(harness: &dyn Harness, workers: Range<u32>, role: Role) -> CheckResult<Self> {
        let lane: Arc<dyn Channel> = to_text(harness.lane(WorkerRange::new(workers.clone()), role))?.into();
        let events = Arc::new(RecordedEvents::default());
        to_text(lane.start(events.clone()))?;
        Ok(Self { lane, events, workers, timeout: harness.timeout() })
    }

    /// Sends a frame once there is room, like a session.
    pub(super) fn send(&self, frame: &Arc<Frame>) -> CheckResult<()> {
        let before = self.rooms();
        if self.lane.room(FrameSize::Large) == 0
            && !self.events.wait(self.timeout, |events| rooms(events) > before || self.lane.room(FrameSize::Large) > 0)
        {
            return Err(format!("there was no room for frame {} within {:?}", frame.seq(), self.timeout));
        }
        to_text(self.lane.send(frame))
    }

    /// How often the lane has reported room.
    pub(super) fn rooms(&self) -> usize {
        rooms(&self.events.so_far())
    }

    /// Waits until `enough` returns true for the events.
    pub(super) fn wait(&self, what: &str, enough: impl Fn(&[Event]) -> bool) -> CheckResult<()> {
        if self.events.wait(self.timeout, enough) {
            Ok(())
        } else {
            Err(format!("{what}: not within {:?}; events so far: {}", self.timeout, self.summary()))
        }
    }

    /// Waits until each of `workers` has sent `count` replies.
    pub(super) fn wait_for_replies(&self, workers: &Range<u32>, count: usize) -> CheckResult<()> {
        let enough = |events: &[Event]| workers.clone().all(|worker| replies(events, worker).len() >= count);
        self.wait(&format!("{count} replies of workers {workers:?}"), enough)
    }

    /// Polls the lane until `poll` returns a value.
    pub(super) fn watch<T>(&self, what: &str, poll: impl Fn(&dyn Channel) -> Option<T>) -> CheckResult<T> {
        let found = waiting::poll(self.timeout, || poll(&*self.lane));
        found.ok_or_else(|| format!("{what}: not within {:?}", self.timeout))
    }

    /// The replies of a worker, with the numbers of their commands.
    pub(super) fn replies_of(&self, worker: u32) -> Vec<(u64, String)> {
        replies(&self.events.so_far(), worker)
    }

    pub(super) fn abort(&self, cause: &str) -> CheckResult<()> {
        to_text(self.lane.signal(Signal::Abort { epoch: 0, cause: cause.into() }))
    }

    /// Sends a shutdown frame and waits until all workers have left.
    pub(super) fn end(self) -> CheckResult<()> {
        self.send(&plain(u64::MAX >> 8, Command::Shutdown))?;
        to_text(self.lane.close(self.timeout))
    }

    fn summary(&self) -> String {
        let events = self.events.so_far();
        let last: Vec<String> = events.iter().rev().take(3).rev().map(|event| format!("{event:?}")).collect();
        format!("{} events, the last: {}", events.len(), last.join("; "))
    }
}

/// Converts an error to its text.
pub(super) fn to_text<T>(result: disco_core::Result<T>) -> CheckResult<T> {
    result.map_err(|error| error.to_string())
}

/// Fails unless `got` equals `expected`.
pub(super) fn expect_equal<T: PartialEq + std::fmt::Debug>(what: &str, got: &T, expected: &T) -> CheckResult<()> {
    if got == expected { Ok(()) } else { Err(format!("{what}: expected {expected:?}, got {got:?}")) }
}

fn rooms(events: &[Event]) -> usize {
    events.iter().filter(|event| matches!(event, Event::Room(_))).count()
}

fn replies(events: &[Event], worker: u32) -> Vec<(u64, String)> {
    let replies = events.iter().filter_map(|event| match event {
        Event::Reply(from, seq, reply) if *from == worker.into() => Some((*seq, reply)),
        _ => None,
    });
    let text = |reply: &disco_core::channel::Reply| match reply {
        Ok(Value::Str(text)) => text.to_string(),
        Ok(other) => format!("{other:?}"),
        Err(failure) => failure.to_string(),
    };
    replies.map(|(seq, reply)| (seq, text(reply))).collect()
}
