//! What goes on at a node while its workers work.

use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::mpsc::{self, Receiver, Sender};
use std::thread;
use std::time::{Duration, Instant};

use disco_core::channel::Signal;
use disco_core::store::SharedStore;
use disco_core::{Channel, Error, Inbox, Result, WorkerRange};

use super::join::Joined;
use super::upstream::Upstream;
use crate::engine::member::serving::{Action, Event, Member};
use crate::reactor::member as driver;
use crate::reactor::{Connection, Incoming, Poller, Waker};
use crate::remote_store::RemoteStore;

/// Limit for what is sent last.
pub(super) const FAREWELL: Duration = Duration::from_secs(2);

/// Between the controller and the lane to the workers here: the driver of a [`Member`].
pub(super) struct Bridge {
    member: Member,
    connection: Arc<Connection>,
    incoming: Incoming,
    waker: Arc<Waker>,
    store: Arc<RemoteStore>,
    upstream: Arc<Upstream>,
    lane: Arc<dyn Channel>,
    workers: WorkerRange,
    /// The lane's start and end, which other threads wait for.
    events: (Sender<Event>, Receiver<Event>),
    poller: Poller,
}

impl Bridge {
    pub(super) fn new(
        Joined { connection, incoming, assignment }: Joined,
        waker: Arc<Waker>,
        store: Arc<RemoteStore>,
        upstream: Arc<Upstream>,
        lane: Arc<dyn Channel>,
    ) -> Self {
        let member = Member::node(&assignment, lane.crosses(), Instant::now());
        let workers = assignment.workers;
        connection.serve(workers.len());
        let (events, poller) = (mpsc::channel(), Poller::default());
        Self { member, connection, incoming, waker, store, upstream, lane, workers, events, poller }
    }

    /// Starts the workers, and serves until they have left or the controller is gone.
    pub(super) fn run(mut self) -> Result<()> {
        let (lane, inbox) = (self.lane.clone(), self.upstream.clone() as Arc<dyn Inbox>);
        self.in_background("disco-start", move || Event::Started(lane.start(inbox)))?;
        let result = loop {
            if let ControlFlow::Break(result) = self.step() {
                break result;
            }
        };
        self.connection.finish(FAREWELL);
        result
    }

    /// Waits for an event on a thread of its own.
    fn in_background(&self, name: &str, work: impl FnOnce() -> Event + Send + 'static) -> Result<()> {
        let (tell, waker) = (self.events.0.clone(), self.waker.clone());
        let work = move || {
            // The bridge may have ended.
            _ = tell.send(work());
            waker.wake();
        };
        let started = thread::Builder::new().name(name.into()).spawn(work);
        started.map(drop).map_err(|error| Error::system("a node's thread can't be started", error))
    }

    /// Waits for the next events, and does what follows from them. Breaks with the node's result.
    fn step(&mut self) -> ControlFlow<Result<()>> {
        driver::wait(&mut self.poller, Some(&self.connection), &self.waker, self.member.next_timeout());
        let mut rounds = driver::ROUNDS;
        loop {
            match driver::next_event(&mut self.incoming, &self.connection, &mut rounds) {
                // Everything that came before is passed on first.
                None | Some(Event::Closed) => break,
                Some(event) => self.handle(event)?,
            }
        }
        while self.member.wants_room()
            && let room @ 1.. = self.lane.room()
        {
            self.handle(Event::Room(room))?;
        }
        if self.connection.is_full() {
            self.handle(Event::Full(self.connection.backlog()))?;
        }
        // That the controller is gone shows when it is listened to.
        _ = self.connection.flush();
        while let Ok(event) = self.events.1.try_recv() {
            self.handle(event)?;
        }
        self.handle(Event::Timeout)?;
        match self.incoming.is_closed() {
            true => self.handle(Event::Closed),
            false => ControlFlow::Continue(()),
        }
    }

    fn handle(&mut self, event: Event) -> ControlFlow<Result<()>> {
        self.member.handle(event, Instant::now());
        while let Some(action) = self.member.next_action() {
            if let Action::End(result) = action {
                return ControlFlow::Break(result);
            }
            if let Err(error) = self.act(action) {
                self.member.handle(Event::Failed(error), Instant::now());
            }
        }
        ControlFlow::Continue(())
    }

    fn act(&mut self, action: Action) -> Result<()> {
        let Self { lane, store, upstream, .. } = self;
        match action {
            Action::Send(message) => upstream.tell(&message),
            Action::SendLast(message) => upstream.tell_last(&message),
            Action::Pass(frame) => lane.send(&Arc::new(frame))?,
            Action::Abort { epoch, cause } => {
                lane.urgent(Signal::Abort { epoch, cause: cause.clone() })?;
                store.abort(epoch, &cause);
            }
            Action::Shutdown => lane.urgent(Signal::Shutdown)?,
            Action::Answer { id, result } => store.answer(id, result.map(|value| (value, None))),
            Action::AwaitWorkers => {
                let lane = lane.clone();
                self.in_background("disco-close", move || Event::Left(close(&*lane, Duration::MAX)))?;
            }
            Action::Look => {
                let progress: Vec<_> = self.workers.iter().map(|worker| lane.progress(worker)).collect();
                for (index, progress) in progress.into_iter().enumerate() {
                    self.member.handle(Event::Progress(index, progress), Instant::now());
                }
            }
            Action::Stop { cause, limit } => {
                upstream.end();
                store.abort(u64::MAX, &cause);
                for signal in [Signal::Shutdown, Signal::Abort { epoch: u64::MAX, cause }] {
                    // A lane that was not started has no workers to tell.
                    _ = lane.urgent(signal);
                }
                let stuck = close(&**lane, limit);
                self.member.handle(Event::Left(stuck), Instant::now());
            }
            // A worker process's.
            Action::Deliver { .. } | Action::Hand { .. } | Action::Kill | Action::End(_) => {}
        }
        Ok(())
    }
}

/// Closes a lane. Returns the workers that did not leave.
fn close(lane: &dyn Channel, limit: Duration) -> String {
    match pollster::block_on(lane.close(limit)) {
        Ok(()) => String::new(),
        Err(Error::Stuck { workers, .. }) => workers,
        Err(error) => error.to_string(),
    }
}
