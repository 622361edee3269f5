//! A member that the controller has taken.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

use disco_core::activity::Progress;
use disco_core::error::{LossCause, LostPeer};
use disco_core::wire::{self, Assignment, Message, Received};
use disco_core::{Command, Error, Frame, Result, Value, WorkerRange};

use super::upward;
use crate::engine::credit::Taken;
use crate::engine::fault::{self, Fault};
use crate::engine::limits::packet_limit;
use crate::engine::transfers::Transfers;
use crate::engine::{Attention, Liveness};

/// Longest interval between two looks at what workers do.
const LOOK_INTERVAL: Duration = Duration::from_millis(200);
/// Time that a worker whose controller is gone has to end by itself.
const WORKER_GRACE: Duration = Duration::from_secs(4);
/// Time that a node's workers have to leave when the controller is gone.
const NODE_GRACE: Duration = Duration::from_secs(1);

/// A member that the controller has taken.
pub(crate) struct Member {
    kind: Kind,
    phase: Phase,
    liveness: Liveness,
    attention: Attention,
    look_interval: Duration,
    looked: Instant,
    /// What the controller was told last of each worker.
    progress: Vec<Progress>,
    /// Large tensors of frames that are still to come.
    transfers: Transfers,
    actions: VecDeque<Action>,
}

enum Kind {
    /// A worker process. Its worker's thread decodes and acknowledges frames.
    Worker {
        has_left: bool,
    },
    Node(Node),
}

/// What only a node has: a lane of its own.
struct Node {
    workers: WorkerRange,
    /// The lane passes frames on as bytes.
    needs_bytes: bool,
    /// Frames that the lane has not taken yet, and their sizes.
    pending: VecDeque<(Frame, usize)>,
    taken: Taken,
}

#[derive(Debug)]
enum Phase {
    Serving,
    /// The workers were told to leave.
    Leaving,
    /// The workers are being stopped; what the member ends with, and when a worker process is killed.
    Stopping {
        result: Result<()>,
        kill: Option<Instant>,
    },
    Over,
}

/// What came.
#[derive(Debug)]
pub(crate) enum Event {
    /// Bytes of the controller, perhaps a part of a message only.
    Heard,
    /// A message of the controller.
    Said(Message),
    /// The controller has closed the connection.
    Closed,
    /// Bytes that are no message, or an action that failed.
    Failed(Error),
    /// A write was refused, since the controller has left so many bytes unread.
    Full(usize),
    /// The node's lane takes so many frames now.
    Room(usize),
    /// What a worker of this index does: the answer to [`Action::Look`].
    Progress(usize, Progress),
    /// The node's lane has started.
    Started(Result<()>),
    /// The workers have left, except those named here.
    Left(String),
    /// It is [time](Member::next_timeout).
    Timeout,
}

/// What the driver has to do.
#[derive(Debug)]
pub(crate) enum Action {
    /// Sends a message ahead of frames and of the parts of large packets.
    Send(Message),
    /// Sends a message behind all others.
    SendLast(Message),
    /// Gives a frame to the worker as it came, with the large tensors that came ahead of it.
    Deliver { seq: u64, bytes: Arc<[u8]>, received: Option<Received> },
    /// Passes a frame on to the node's lane.
    Pass(Frame),
    /// Aborts everything that waits on peers, and questions, unless `epoch` is over.
    Abort { epoch: u64, cause: Arc<str> },
    /// Tells the workers to leave at the next opportunity.
    Shutdown,
    /// Waits for the node's workers in the background, then tells [`Event::Left`].
    AwaitWorkers,
    /// Passes the answer to a question on.
    Answer { id: u64, result: Result<Value> },
    /// Passes the descriptor on that came along.
    Hand { id: u64 },
    /// Tells what each worker does ([`Event::Progress`]).
    Look,
    /// Aborts and stops the workers; [`Event::Left`] follows once they have left, after `limit` at the latest.
    Stop { cause: Arc<str>, limit: Duration },
    /// Ends the process, as the worker's thread has not ended.
    Kill,
    /// Nothing follows.
    End(Result<()>),
}

impl Member {
    /// A worker process, which says what it does each `heartbeat` and gets values of at most `value_limit` bytes. A Unix socket closes
    /// when the controller ends, so the controller may be silent.
    pub(crate) fn worker(heartbeat: Duration, value_limit: usize, now: Instant) -> Self {
        Self::new(Kind::Worker { has_left: false }, 1, (heartbeat, Duration::MAX), value_limit, now)
    }

    /// A node, whose lane takes frames as bytes if it `needs_bytes`.
    pub(crate) fn node(assignment: &Assignment, needs_bytes: bool, now: Instant) -> Self {
        let Assignment { workers, heartbeat, silence, .. } = assignment;
        let count = workers.len();
        let node = Node { workers: *workers, needs_bytes, pending: VecDeque::new(), taken: Taken::default() };
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
            look_interval: (heartbeat / 5).min(LOOK_INTERVAL),
            looked: now,
            progress: vec![Progress::default(); workers],
            transfers: Transfers::new(packet_limit(value_limit)),
            actions: VecDeque::new(),
        }
    }

    /// What the driver has to do next.
    pub(crate) fn next_action(&mut self) -> Option<Action> {
        self.actions.pop_front()
    }

    /// When the engine wants [`Event::Timeout`].
    pub(crate) fn next_timeout(&self) -> Option<Instant> {
        match &self.phase {
            Phase::Serving | Phase::Leaving => {
                let times = [self.liveness.next_timeout(), self.attention.next_timeout()];
                times.into_iter().flatten().chain([self.looked + self.look_interval]).min()
            }
            Phase::Stopping { kill, .. } => *kill,
            Phase::Over => None,
        }
    }

    /// Whether frames wait for [room](Event::Room) in the node's lane.
    pub(crate) fn wants_room(&self) -> bool {
        matches!(&self.kind, Kind::Node(node) if !node.pending.is_empty())
    }

    /// Whether what the controller says still matters.
    pub(crate) fn listens(&self) -> bool {
        matches!(self.phase, Phase::Serving | Phase::Leaving)
    }

    /// Takes in what came.
    pub(crate) fn handle(&mut self, event: Event, now: Instant) {
        match (&mut self.phase, event) {
            (Phase::Over, _) => {}
            (_, Event::Left(stuck)) => self.leave(stuck),
            (Phase::Stopping { kill, .. }, Event::Timeout) => {
                if kill.is_some_and(|kill| kill <= now) {
                    self.actions.push_back(Action::Kill);
                    self.end(Ok(()));
                }
            }
            (Phase::Stopping { .. }, _) => {}
            (_, event) => {
                if self.attention.look(now) {
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
            Event::Heard => self.liveness.heard(now),
            Event::Said(message) => self.hear(message, now)?,
            Event::Closed if self.is_leaving() => self.dismiss(),
            Event::Closed => return Err(self.gone(LossCause::ConnectionClosed, "is gone")),
            Event::Failed(error) => return Err(error),
            Event::Full(unread) => return Err(lost(LossCause::Unread(unread))),
            Event::Room(room) => self.pass_on(room),
            Event::Progress(index, progress) => self.report(index, progress, now),
            Event::Started(started) => {
                started?;
                self.actions.push_back(Action::Send(Message::Ready));
            }
            Event::Timeout => self.look_at_time(now)?,
            // Handled in all phases.
            Event::Left(_) => {}
        }
        Ok(())
    }

    fn hear(&mut self, message: Message, now: Instant) -> Result<()> {
        self.liveness.heard(now);
        let is_leaving = self.is_leaving();
        let action = match (message, &mut self.kind) {
            (Message::Ahead { transfer, left, bytes }, _) => return self.transfers.add(transfer, left, &bytes),
            (Message::Withdraw(transfer), _) => return self.transfers.withdraw(transfer),
            (Message::Frame { seq, bytes, transfer }, Kind::Worker { .. }) => {
                let received = transfer.map(|transfer| self.transfers.take(transfer)).transpose()?;
                Action::Deliver { seq, bytes, received }
            }
            // The shutdown has overtaken it.
            (Message::Frame { .. }, Kind::Node(_)) if is_leaving => return Ok(()),
            (Message::Frame { seq, bytes, transfer: None }, Kind::Node(node)) => {
                let decode = if node.needs_bytes { Frame::decode } else { wire::decode_frame };
                node.pending.push_back((decode(seq, &bytes)?, bytes.len()));
                return Ok(());
            }
            (Message::Frame { seq, bytes, transfer: Some(transfer) }, Kind::Node(node)) => {
                let received = self.transfers.take(transfer)?;
                let size = bytes.len() + received.byte_len();
                node.pending.push_back((wire::decode_frame_after(seq, &bytes, received)?, size));
                return Ok(());
            }
            (Message::Abort { epoch, cause }, _) => Action::Abort { epoch, cause },
            (Message::Shutdown, Kind::Worker { .. }) => Action::Shutdown,
            (Message::Shutdown, Kind::Node(node)) => {
                node.pending.clear();
                self.actions.push_back(Action::Shutdown);
                self.await_workers();
                return Ok(());
            }
            (Message::Answer { id, result }, _) => Action::Answer { id, result },
            (Message::Handed { id }, Kind::Worker { .. }) => Action::Hand { id },
            (Message::Alive, Kind::Node(_)) => return Ok(()),
            (Message::Bye(why), Kind::Node(_)) if is_leaving => {
                tracing::debug!(%why, "dismissed");
                self.dismiss();
                return Ok(());
            }
            (Message::Bye(why), _) => {
                let worker = format!("says: {why}");
                return Err(self.gone(LossCause::Said(why), &worker));
            }
            (other, _) => {
                return Err(self.gone(LossCause::Garbage(format!("it says {other}")), &format!("says {other:?}")));
            }
        };
        self.actions.push_back(action);
        Ok(())
    }

    /// The controller is of no use, as a node puts it and as a worker does.
    fn gone(&self, node: LossCause, worker: &str) -> Error {
        match self.kind {
            Kind::Node(_) => lost(node),
            Kind::Worker { .. } => Error::protocol(format!("the controller {worker}")),
        }
    }

    fn is_leaving(&self) -> bool {
        matches!(self.phase, Phase::Leaving)
    }

    /// Passes on as many frames as the lane takes, and acknowledges them.
    fn pass_on(&mut self, room: usize) {
        let Kind::Node(node) = &mut self.kind else { return };
        for _ in 0..room {
            let Some((frame, size)) = node.pending.pop_front() else { return };
            let is_last = matches!(frame.command(), Command::Shutdown);
            self.actions.push_back(Action::Pass(frame));
            let mut is_due = node.taken.take(size);
            if fault::is_planted(Fault::DoubleCredit) {
                is_due |= node.taken.take(size);
            }
            if is_due {
                let (frames, bytes) = node.taken.say();
                self.actions.push_back(Action::Send(Message::Room { frames, bytes }));
            }
            if is_last {
                node.pending.clear();
                return self.await_workers();
            }
        }
    }

    /// The workers were told to leave.
    fn await_workers(&mut self) {
        if !self.is_leaving() {
            self.phase = Phase::Leaving;
            self.actions.push_back(Action::AwaitWorkers);
        }
    }

    /// Reports what a worker does if that has changed. A worker process does so as its heartbeat, too.
    fn report(&mut self, index: usize, progress: Progress, now: Instant) {
        let Some(said) = self.progress.get_mut(index) else { return };
        let message = match &self.kind {
            Kind::Worker { .. } if progress != *said || self.liveness.must_say(now) => {
                self.liveness.said(now);
                if fault::is_planted(Fault::NoHeartbeat) {
                    return;
                }
                Message::Progress(progress.clone())
            }
            Kind::Node(node) if progress != *said => match node.workers.get(index) {
                Some(worker) => upward::from(worker, Message::Progress(progress.clone())),
                None => return,
            },
            _ => return,
        };
        *said = progress;
        self.actions.push_back(Action::Send(message));
    }

    fn look_at_time(&mut self, now: Instant) -> Result<()> {
        if let Some(limit) = self.liveness.is_silent(now) {
            return Err(lost(LossCause::Silent(limit)));
        }
        let is_worker = matches!(self.kind, Kind::Worker { .. });
        if now.saturating_duration_since(self.looked) >= self.look_interval || is_worker && self.liveness.must_say(now)
        {
            self.looked = now;
            self.actions.push_back(Action::Look);
        }
        if !is_worker && self.liveness.must_say(now) {
            self.liveness.said(now);
            if !fault::is_planted(Fault::NoHeartbeat) {
                self.actions.push_back(Action::Send(Message::Alive));
            }
        }
        Ok(())
    }

    /// The controller has let go of a member whose workers leave already.
    fn dismiss(&mut self) {
        self.stop("the session shuts down", Duration::ZERO, Ok(()), None);
    }

    /// The controller is gone, or the member can't go on.
    fn fail(&mut self, error: Error, now: Instant) {
        match self.kind {
            Kind::Worker { has_left } => {
                self.stop(&error.to_string(), WORKER_GRACE, Ok(()), Some(now + WORKER_GRACE));
                if has_left {
                    self.end(Ok(()));
                }
            }
            Kind::Node(_) => {
                tracing::error!(%error, "stops its workers");
                // The controller may be there, and only not understood.
                self.actions.push_back(Action::Send(Message::Bye(error.to_string())));
                self.stop(&error.to_string(), NODE_GRACE, Err(error), None);
            }
        }
    }

    fn stop(&mut self, why: &str, limit: Duration, result: Result<()>, kill: Option<Instant>) {
        self.phase = Phase::Stopping { result, kill };
        self.actions.push_back(Action::Stop { cause: why.into(), limit });
    }

    /// The workers have left, except those who are `stuck`.
    fn leave(&mut self, stuck: String) {
        let result = match (&mut self.kind, std::mem::replace(&mut self.phase, Phase::Leaving)) {
            (Kind::Worker { has_left }, phase @ (Phase::Serving | Phase::Leaving)) => {
                *has_left = true;
                self.phase = phase;
                return;
            }
            (_, Phase::Stopping { result, .. }) => result,
            _ => Ok(()),
        };
        if let Kind::Worker { .. } = self.kind {
            return self.end(result);
        }
        self.actions.push_back(Action::SendLast(Message::Left(stuck.clone())));
        self.end(match stuck.is_empty() {
            true => result,
            false => result.and(Err(Error::state(format!("these did not leave: {stuck}")))),
        });
    }

    fn end(&mut self, result: Result<()>) {
        self.phase = Phase::Over;
        self.actions.push_back(Action::End(result));
    }
}

/// The controller is of no use.
pub(crate) fn lost(why: LossCause) -> Error {
    Error::lost(LostPeer::Controller, why)
}
