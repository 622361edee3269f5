//! Connects a node's member engine to the lane of the node's own workers.

use std::sync::Arc;
use std::sync::mpsc::{self, Receiver, Sender};
use std::thread;
use std::time::{Duration, Instant};

use disco_core::channel::{FrameSize, Signal};
use disco_core::store::SharedStore;
use disco_core::{Channel, Error, Inbox, Result, WorkerRange};
use disco_engine::clock::MachineClock;
use disco_engine::limits::{MAX_SENT_RECORDS, packet_limit};
use disco_engine::member::serving::{Action, Event, Member};

use super::guests::Guests;
use super::join::Joined;
use super::stop::StopHandle;
use super::upstream::Upstream;
use crate::remote::reactor::member::{Driver, Host};
use crate::remote::reactor::{Incoming, Waker};
use crate::remote::store::RemoteStore;

/// Timeout for sending the last messages before the connection is closed.
pub(super) const FLUSH_TIMEOUT: Duration = Duration::from_secs(2);

/// The [`Host`] of a node's member: carries out its actions on the lane to the node's own workers.
pub(super) struct Bridge {
    waker: Arc<Waker>,
    store: Arc<RemoteStore>,
    upstream: Arc<Upstream>,
    lane: Arc<dyn Channel>,
    workers: WorkerRange,
    /// New processes in the places of lost ones.
    guests: Guests,
    /// Whether the workers' records are sent when they leave.
    sends_records: bool,
    stop: StopHandle,
    /// Results of the lane's start and close, which run on threads of their own.
    events: (Sender<Event>, Receiver<Event>),
}

impl Bridge {
    pub(super) fn new(
        waker: Arc<Waker>,
        store: Arc<RemoteStore>,
        upstream: Arc<Upstream>,
        lane: Arc<dyn Channel>,
        guests: Guests,
        stop: StopHandle,
    ) -> Self {
        let workers = lane.facts().workers;
        Self { waker, store, upstream, lane, workers, guests, sends_records: false, stop, events: mpsc::channel() }
    }

    /// Starts the workers, and serves until they have left or the controller is lost.
    pub(super) fn run(mut self, Joined { connection, mut incoming, assignment, .. }: Joined) -> Result<()> {
        let limit = packet_limit(assignment.config.value_limit);
        connection.serve(self.workers.len(), limit);
        incoming.set_limit(limit);
        self.sends_records = assignment.config.recorder.has_timeline();
        let (lane, upstream) = (self.lane.clone(), self.upstream.clone());
        upstream.set_lane(&lane);
        self.in_background("disco-start", move || {
            let started = lane.start(upstream.clone() as Arc<dyn Inbox>);
            Event::Started(started.inspect(|()| upstream.start()))
        })?;
        let member = Member::node(&assignment, self.lane.facts().needs_bytes, Instant::now());
        let member = member.with_clock(MachineClock::of_records());
        let mut driver = Driver { member, connection, incoming, waker: self.waker.clone(), host: self, is_busy: false };
        let result = driver.run();
        driver.connection.finish(FLUSH_TIMEOUT);
        driver.host.guests.end(&result);
        result
    }

    /// Runs blocking `work` on a thread of its own; its event is handled by the driver.
    fn in_background(&self, name: &str, work: impl FnOnce() -> Event + Send + 'static) -> Result<()> {
        let (sender, waker) = (self.events.0.clone(), self.waker.clone());
        let work = move || {
            // The bridge may have ended.
            _ = sender.send(work());
            waker.wake();
        };
        let started = thread::Builder::new().name(name.into()).spawn(work);
        started.map(drop).map_err(|error| Error::system("a node's thread can't be started", error))
    }
}

impl Host for Bridge {
    const STAYS_AWAKE: bool = true;

    fn lanes(&self) -> &[Arc<dyn Channel>] {
        std::slice::from_ref(&self.lane)
    }

    fn next_event(&mut self, member: &Member) -> Option<Event> {
        if member.wants_room()
            && let room @ 1.. = self.lane.room(FrameSize::Large)
        {
            return Some(Event::Room(room));
        }
        match self.stop.take() {
            Some(why) => Some(Event::Failed(Error::state(why))),
            None => self.events.1.try_recv().ok(),
        }
    }

    fn act(&mut self, action: Action, _: &mut Incoming) -> Result<Vec<Event>> {
        let Self { lane, store, upstream, .. } = self;
        match action {
            Action::Send(message) => upstream.send_urgent(&message),
            Action::SendLast(message) => upstream.send_last(&message),
            Action::Pass(frame) => {
                upstream.expect(&frame);
                lane.send(&Arc::new(frame))?;
            }
            Action::Signal(signal @ Signal::Abort { .. }) => upstream.abort(signal),
            // The lane's inbox, `upstream`, sends the recordings.
            Action::Signal(Signal::Collect { last }) => collect(&**lane, last),
            Action::Signal(Signal::Replace { workers, addresses }) if self.guests.have(workers) => {
                upstream.note_replaced(workers);
                self.guests.start(workers, &addresses);
            }
            Action::Signal(signal) => lane.signal(signal)?,
            Action::Answer { id, result } => store.answer(id, result.map(|value| (value, None))),
            Action::AwaitWorkers => {
                let (lane, sends_records) = (lane.clone(), self.sends_records);
                let close = move || Event::Left(close(&*lane, Duration::MAX, sends_records));
                self.in_background("disco-close", close)?;
            }
            Action::ReadProgress => {
                upstream.flush();
                let progress = self.workers.iter().map(|worker| lane.progress(worker)).collect();
                return Ok(vec![Event::Progress(progress)]);
            }
            Action::Stop { cause, limit } => {
                upstream.split();
                upstream.end();
                store.abort(u64::MAX, &cause);
                for signal in [Signal::Shutdown, Signal::Abort { epoch: u64::MAX, cause }] {
                    // Fails only if the lane was not started, and so has no workers.
                    _ = lane.signal(signal);
                }
                // In the background: this thread sends heartbeats while nodes behind this one are waited for.
                let (closing, sends_records) = (lane.clone(), self.sends_records);
                let close_lane = move || Event::Left(close(&*closing, limit, sends_records));
                let started = self.in_background("disco-close", close_lane);
                let close_here = |_| Event::Left(close(&*self.lane, limit, sends_records));
                return Ok(started.err().map(close_here).into_iter().collect());
            }
            // A node gets each frame itself.
            Action::Rest => {}
            // Only worker processes get the first three; the driver handles `End`.
            Action::Deliver { .. } | Action::DeliverDescriptor { .. } | Action::Kill | Action::End(_) => {}
        }
        Ok(Vec::new())
    }
}

/// Makes a lane pass the last records of its workers to its inbox, which sends them to the controller.
fn collect(lane: &dyn Channel, last: usize) {
    if let Err(error) = lane.signal(Signal::Collect { last: last.min(MAX_SENT_RECORDS) }) {
        tracing::debug!(%error, "a lane has no records");
    }
}

/// Closes a lane, and sends the recordings of its workers. Returns the workers that did not leave, or the lane's error,
/// as text.
fn close(lane: &dyn Channel, limit: Duration, sends_records: bool) -> String {
    let closed = lane.close(limit);
    if sends_records {
        collect(lane, usize::MAX);
    }
    match closed {
        Ok(()) => String::new(),
        Err(Error::Stuck { workers, .. }) => workers,
        Err(error) => error.to_string(),
    }
}
