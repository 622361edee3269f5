//! A member that the controller has accepted: passes on messages, reports progress, and stops its workers.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

use disco_core::activity::Progress;
use disco_core::channel::Signal;
use disco_core::error::{LossCause, LostPeer};
use disco_core::wire::{self, Assignment, Message, Received};
use disco_core::{Command, Error, Frame, Result, Value, WorkerRange};

use super::upward;
use crate::clock::{Echo, MachineClock};
use crate::credit::Taken;
use crate::fault::{self, Fault};
use crate::limits::packet_limit;
use crate::transfers::Transfers;
use crate::{Attention, Liveness};

/// Longest interval between two polls of the workers' progress.
const TIMER_INTERVAL: Duration = Duration::from_millis(200);
/// Least interval for each worker: nodes that relay report for many, and their controller handles all reports.
const MIN_POLL_INTERVAL_PER_WORKER: Duration = Duration::from_micros(400);
/// Time without a change after which progress is polled once in a heartbeat's interval.
const IDLE_AFTER: Duration = Duration::from_secs(1);

/// A member that the controller has accepted.
pub struct Member {
    pub(super) kind: Kind,
    pub(super) phase: Phase,
    pub(super) liveness: Liveness,
    attention: Attention,
    pub(super) clock: MachineClock,
    pub(super) echo: Echo,
    heartbeat: Duration,
    last_poll: Instant,
    /// When a worker's progress has changed last, or had a reason to.
    last_change: Instant,
    /// [`Action::Rest`] was given.
    rests: bool,
    /// The progress of each worker as last reported.
    progress: Vec<Progress>,
    /// Large tensors whose frames were not received yet.
    transfers: Transfers,
    pub(super) actions: VecDeque<Action>,
}

pub(super) enum Kind {
    /// A worker process. Its worker's thread decodes and acknowledges frames.
    Worker {
        has_left: bool,
    },
    Node(Node),
}

/// State of a node, which has a lane of its own.
pub(super) struct Node {
    workers: WorkerRange,
    /// Whether the lane passes frames on as bytes.
    needs_bytes: bool,
    /// Frames that the lane has not taken yet, with their sizes in bytes.
    pub(super) pending: VecDeque<(Frame, usize)>,
    taken: Taken,
    /// Why this epoch has failed, if it has.
    failure: Option<Arc<str>>,
    /// The failure of the session that the controller has dropped.
    pub(super) dropped_after: Option<Arc<str>>,
}

impl Node {
    /// Keeps a frame until the lane takes it.
    fn queue(&mut self, seq: u64, bytes: &[u8], received: Option<Received>) -> Result<()> {
        let size = bytes.len() + received.as_ref().map_or(0, Received::byte_len);
        let frame = match received {
            Some(received) => wire::decode_frame_after(seq, bytes, received)?,
            None if self.needs_bytes => Frame::decode(seq, bytes)?,
            None => wire::decode_frame(seq, bytes)?,
        };
        if let Command::Recover { .. } | Command::Resize { .. } = frame.command() {
            self.failure = None;
        }
        self.pending.push_back((frame, size));
        Ok(())
    }
}

#[derive(Debug)]
pub(super) enum Phase {
    Serving,
    /// The workers were told to leave.
    Leaving,
    /// The workers are being stopped. The member ends with `result`; a worker process is killed at `kill`.
    Stopping {
        result: Result<()>,
        kill: Option<Instant>,
    },
    Over,
}

/// An event from the driver.
#[allow(
    clippy::exhaustive_enums,
    missing_docs,
    reason = "engine and lane know all variants, whose texts name the fields"
)]
#[derive(Debug)]
pub enum Event {
    /// A packet of the controller came that is a part of a large message.
    PartReceived,
    /// A message of the controller.
    Message(Message),
    /// The controller has closed the connection.
    Closed,
    /// Bytes that are not a message came, or an action failed.
    Failed(Error),
    /// A write was refused, since the controller has left this many bytes unread.
    Full(usize),
    /// The controller has closed the connection, and its machine has not acknowledged this many bytes.
    Unacknowledged(usize),
    /// The node's lane has room for this many frames.
    Room(usize),
    /// The progress of each worker, as asked for by [`Action::ReadProgress`].
    Progress(Vec<Progress>),
    /// The worker runs again, after [`Action::Rest`].
    WorkerRuns,
    /// The node's lane has started.
    Started(Result<()>),
    /// The workers have left, except those named here.
    Left(String),
    /// The time of [`Member::next_timeout`] has come.
    Timeout,
}

/// An action for the driver.
#[allow(
    clippy::exhaustive_enums,
    missing_docs,
    reason = "engine and lane know all variants, whose texts name the fields"
)]
#[derive(Debug)]
pub enum Action {
    /// Sends a message ahead of frames and of the parts of large packets.
    Send(Message),
    /// Sends a message behind all others.
    SendLast(Message),
    /// Gives an encoded frame to the worker, with the large tensors that came ahead of it.
    Deliver { seq: u64, bytes: Arc<[u8]>, received: Option<Received> },
    /// Passes a frame on to the node's lane.
    Pass(Frame),
    /// Passes a signal on to the workers.
    Signal(Signal),
    /// Waits for the node's workers in the background, then brings [`Event::Left`].
    AwaitWorkers,
    /// Passes on the answer to a request.
    Answer { id: u64, result: Result<Value> },
    /// Passes on a descriptor that came with its message.
    DeliverDescriptor { id: u64 },
    /// Brings an [`Event::Progress`].
    ReadProgress,
    /// Progress is polled rarely from now on. A worker process brings [`Event::WorkerRuns`] when its worker runs again.
    Rest,
    /// Aborts and stops the workers. [`Event::Left`] follows once they have left, at the latest after `limit`.
    Stop { cause: Arc<str>, limit: Duration },
    /// Kills this process, whose worker's thread has not ended in time.
    Kill,
    /// The member has ended with this result; no action follows.
    End(Result<()>),
}

impl Member {
    /// Makes the member of a worker process, which reports its progress each `heartbeat` and gets values of at most
    /// `value_limit` bytes. It has no silence timeout: its Unix socket closes when the controller ends.
    pub fn worker(heartbeat: Duration, value_limit: usize, now: Instant) -> Self {
        Self::new(Kind::Worker { has_left: false }, 1, (heartbeat, Duration::MAX), value_limit, now)
    }

    /// Makes the member of a node. `needs_bytes` tells whether the node's lane takes frames as bytes.
    pub fn node(assignment: &Assignment, needs_bytes: bool, now: Instant) -> Self {
        let Assignment { workers, heartbeat, silence, .. } = assignment;
        let count = workers.len();
        let node = Node {
            workers: *workers,
            needs_bytes,
            pending: VecDeque::new(),
            taken: Taken::default(),
            failure: None,
            dropped_after: None,
        };
        Self::new(Kind::Node(node), count, (*heartbeat, *silence), assignment.config.value_limit, now)
    }

    fn new(
        kind: Kind,
        workers: usize,
        (heartbeat, silence): (Duration, Duration),
        value_limit: usize,
        now: Instant,
    ) -> Self {
        Self {
            kind,
            phase: Phase::Serving,
            liveness: Liveness::new(heartbeat, silence, now),
            attention: Attention::new(silence, now),
            clock: MachineClock::since(now),
            echo: Echo::default(),
            heartbeat,
            last_poll: now,
            last_change: now,
            rests: false,
            progress: vec![Progress::default(); workers],
            transfers: Transfers::new(packet_limit(value_limit)),
            actions: VecDeque::new(),
        }
    }

    /// The next action for the driver.
    pub fn next_action(&mut self) -> Option<Action> {
        self.actions.pop_front()
    }

    /// When the engine wants [`Event::Timeout`].
    pub fn next_timeout(&self) -> Option<Instant> {
        match &self.phase {
            Phase::Serving | Phase::Leaving => {
                let times = [self.liveness.next_timeout(), self.attention.next_timeout()];
                times.into_iter().flatten().chain([self.last_poll + self.poll_interval()]).min()
            }
            Phase::Stopping { kill, .. } => {
                kill.iter().copied().chain(self.liveness.next_heartbeat().filter(|_| self.is_awaited())).min()
            }
            Phase::Over => None,
        }
    }

    /// Whether this is a node that stops its workers while its controller waits for it. Nodes behind others may need longer
    /// for that than a silence timeout.
    pub(super) fn is_awaited(&self) -> bool {
        matches!((&self.kind, &self.phase), (Kind::Node(_), Phase::Stopping { result: Ok(()), .. }))
    }

    /// Whether frames wait for [room](Event::Room) in the node's lane.
    pub fn wants_room(&self) -> bool {
        matches!(&self.kind, Kind::Node(node) if !node.pending.is_empty())
    }

    /// Whether messages of the controller are still handled.
    pub fn listens(&self) -> bool {
        matches!(self.phase, Phase::Serving | Phase::Leaving)
    }

    /// Whether no worker is inside a function, and nothing has changed for some time.
    fn is_idle(&self) -> bool {
        self.last_poll >= self.last_change + IDLE_AFTER && self.progress.iter().all(|worker| worker.inside.is_none())
    }

    fn poll_interval(&self) -> Duration {
        let many = MIN_POLL_INTERVAL_PER_WORKER * self.progress.len() as u32;
        let interval = (self.heartbeat / 5).min(TIMER_INTERVAL).max(many).min(self.heartbeat);
        if self.is_idle() { self.heartbeat } else { interval }
    }

    /// Handles an event.
    pub fn handle(&mut self, event: Event, now: Instant) {
        match (&mut self.phase, event) {
            (Phase::Over, _) => {}
            (_, Event::Left(stuck)) => self.leave(stuck),
            (Phase::Stopping { kill, .. }, Event::Timeout) => {
                if kill.is_some_and(|kill| kill <= now) {
                    self.actions.push_back(Action::Kill);
                    self.end(Ok(()));
                } else if self.is_awaited() {
                    self.send_heartbeat(now);
                }
            }
            (Phase::Stopping { .. }, _) => {}
            (_, event) => {
                if self.attention.check(now) {
                    self.liveness.excuse(now);
                }
                if let Err(error) = self.serve(event, now) {
                    self.fail(error, now);
                }
            }
        }
    }

    fn serve(&mut self, event: Event, now: Instant) -> Result<()> {
        match event {
            Event::PartReceived => self.liveness.received(now),
            Event::Message(message) => self.receive(message, now)?,
            Event::Closed if self.is_leaving() => self.stop_quietly(),
            Event::Closed => return Err(controller_lost(LossCause::ConnectionClosed)),
            Event::Failed(error) => return Err(error),
            Event::Full(unread) => return Err(controller_lost(LossCause::Unread(unread))),
            Event::Unacknowledged(_) if self.is_leaving() => self.stop_quietly(),
            Event::Unacknowledged(bytes) => return Err(controller_lost(LossCause::Unacknowledged(bytes))),
            Event::Room(room) => self.pass_on(room),
            Event::Progress(progress) => self.report(progress, now),
            Event::WorkerRuns => self.last_change = now,
            Event::Started(started) => {
                started?;
                self.actions.push_back(Action::Send(Message::Ready));
            }
            Event::Timeout => self.on_timer(now)?,
            // Handled in all phases.
            Event::Left(_) => {}
        }
        Ok(())
    }

    fn receive(&mut self, message: Message, now: Instant) -> Result<()> {
        self.liveness.received(now);
        if let Message::Frame { .. } = &message {
            self.last_change = now;
        }
        let is_leaving = self.is_leaving();
        let action = match (message, &mut self.kind) {
            // The frames of these transfers are dropped, too.
            (Message::Ahead { .. } | Message::Withdraw(_), _) if is_leaving => return Ok(()),
            (Message::Ahead { transfer, left, bytes }, _) => return self.transfers.add(transfer, left, &bytes),
            (Message::Withdraw(transfer), _) => return self.transfers.withdraw(transfer),
            (Message::Frame { seq, bytes, transfer }, Kind::Worker { .. }) => {
                let received = transfer.map(|transfer| self.transfers.take(transfer)).transpose()?;
                Action::Deliver { seq, bytes, received }
            }
            // The shutdown has overtaken this frame.
            (Message::Frame { .. }, Kind::Node(_)) if is_leaving => return Ok(()),
            (Message::Frame { seq, bytes, transfer }, Kind::Node(node)) => {
                let received = transfer.map(|transfer| self.transfers.take(transfer)).transpose()?;
                return node.queue(seq, &bytes, received);
            }
            (Message::Signal(Signal::Shutdown), Kind::Node(node)) => {
                if !is_leaving {
                    node.dropped_after = node.failure.take();
                }
                node.pending.clear();
                self.actions.push_back(Action::Signal(Signal::Shutdown));
                self.await_workers();
                return Ok(());
            }
            (Message::Signal(signal), kind) => {
                // An abort of all epochs ends them without a failure.
                if let (Signal::Abort { epoch, cause }, Kind::Node(node)) = (&signal, kind)
                    && *epoch != u64::MAX
                {
                    node.failure = Some(cause.clone());
                }
                Action::Signal(signal)
            }
            (Message::Answer { id, result }, _) => Action::Answer { id, result },
            (Message::Descriptor { id }, Kind::Worker { .. }) => Action::DeliverDescriptor { id },
            (Message::Alive(times), Kind::Node(_)) => {
                self.receive_heartbeat(times, now);
                return Ok(());
            }
            (Message::Bye(why), Kind::Node(_)) if is_leaving => {
                tracing::debug!(%why, "the controller has released this node");
                self.stop_quietly();
                return Ok(());
            }
            (Message::Bye(why), _) => return Err(controller_lost(LossCause::ClosedWithReason(why))),
            (other, _) => return Err(controller_lost(LossCause::ProtocolViolation(format!("it sent {other}")))),
        };
        self.actions.push_back(action);
        Ok(())
    }

    fn is_leaving(&self) -> bool {
        matches!(self.phase, Phase::Leaving)
    }

    /// Passes on at most `room` frames, and acknowledges them.
    fn pass_on(&mut self, room: usize) {
        let Kind::Node(node) = &mut self.kind else { return };
        for _ in 0..room {
            let Some((frame, size)) = node.pending.pop_front() else { return };
            let is_last = match frame.command() {
                Command::Shutdown => true,
                Command::Resize { members, .. } => members.have_none_of(node.workers),
                _ => false,
            };
            self.actions.push_back(Action::Pass(frame));
            let mut is_due = node.taken.take(size);
            if fault::is_planted(Fault::DoubleCredit) {
                is_due |= node.taken.take(size);
            }
            if is_due {
                let (frames, bytes) = node.taken.acknowledge();
                self.actions.push_back(Action::Send(Message::Credit { frames, bytes }));
            }
            if is_last {
                node.pending.clear();
                return self.await_workers();
            }
        }
    }

    /// Waits for the workers, which were told to leave.
    fn await_workers(&mut self) {
        if !self.is_leaving() {
            self.phase = Phase::Leaving;
            self.transfers.clear();
            self.actions.push_back(Action::AwaitWorkers);
        }
    }

    /// Reports the progress of workers that has changed. The report of a worker process is also its heartbeat.
    fn report(&mut self, progress: Vec<Progress>, now: Instant) {
        if self.progress != progress {
            self.last_change = now;
        }
        let is_idle = self.is_idle() && progress.iter().all(|worker| worker.inside.is_none());
        if is_idle && !self.rests {
            self.actions.push_back(Action::Rest);
        }
        self.rests = is_idle;
        match &self.kind {
            Kind::Worker { .. } if progress != self.progress || self.liveness.must_send(now) => {
                self.liveness.sent(now);
                if fault::is_planted(Fault::NoHeartbeat) {
                    return;
                }
                let reports = progress.iter().map(|progress| Action::Send(Message::Progress(progress.clone())));
                self.actions.extend(reports);
            }
            Kind::Worker { .. } => return,
            Kind::Node(node) => {
                let reports = upward::progress(node.workers, &self.progress, &progress);
                self.actions.extend(reports.into_iter().map(Action::Send));
            }
        }
        self.progress = progress;
    }

    fn on_timer(&mut self, now: Instant) -> Result<()> {
        if let Some(limit) = self.liveness.is_silent(now) {
            return Err(controller_lost(LossCause::Silent(limit)));
        }
        let is_worker = matches!(self.kind, Kind::Worker { .. });
        if now.saturating_duration_since(self.last_poll) >= self.poll_interval()
            || (is_worker || self.is_idle()) && self.liveness.must_send(now)
        {
            self.last_poll = now;
            self.actions.push_back(Action::ReadProgress);
        }
        if !is_worker {
            self.send_heartbeat(now);
        }
        Ok(())
    }
}

/// The error that the controller is lost.
pub fn controller_lost(why: LossCause) -> Error {
    Error::peer_lost(LostPeer::Controller, why)
}
