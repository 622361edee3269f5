//! Messages of a node's workers, as the node relays them to the controller.

use disco_core::activity::Progress;
use disco_core::channel::{Notice, Signal};
use disco_core::error::{Error, LossCause, LostPeer};
use disco_core::wire::Message;
use disco_core::{Command, Frame, Members, Value, WorkerRange, WorkerSet};

use crate::fault::{self, Fault};

/// The order of a message on the connection.
#[allow(clippy::exhaustive_enums, reason = "engine and lane know all variants")]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Priority {
    /// Ahead of frames and of the parts of large packets.
    Urgent,
    /// Behind all earlier packets.
    Last,
}

/// Wraps the message of a worker, or that of each of some workers.
pub fn from(workers: impl Into<WorkerRange>, message: Message) -> Message {
    Message::From { workers: workers.into(), message: Box::new(message) }
}

/// Replies without a value to commands that all workers of a node, and of the nodes behind it, reply to. They go up in
/// one message.
#[derive(Debug)]
pub struct Replies {
    workers: WorkerRange,
    /// Workers that have left or are lost. They are not waited for.
    gone: WorkerSet,
    waiting: Vec<Waiting>,
}

/// The replies to one command.
#[derive(Debug)]
struct Waiting {
    seq: u64,
    replied: WorkerSet,
    /// Workers that have replied since.
    unsent: WorkerSet,
}

impl Replies {
    /// Combines the replies of `workers`.
    pub fn new(workers: WorkerRange) -> Self {
        Self { workers, gone: WorkerSet::new(workers), waiting: Vec::new() }
    }

    /// Expects no later replies of these workers.
    pub fn retire(&mut self, workers: WorkerRange) {
        self.gone.insert(workers);
    }

    /// Expects the replies to `frame`, if all workers reply to it. Call it before the workers get the frame.
    pub fn expect(&mut self, frame: &Frame) {
        if matches!(frame.command(), Command::SyncAll) && self.workers.len() > 1 {
            let (replied, unsent) = (self.gone.clone(), WorkerSet::new(self.workers));
            self.waiting.push(Waiting { seq: frame.seq(), replied, unsent });
        }
    }

    /// Adds the reply of each of some workers. Returns the messages to send, if they do not wait for other replies.
    pub fn add(&mut self, workers: WorkerRange, seq: u64) -> Vec<Message> {
        let Some(at) = self.waiting.iter().position(|waiting| waiting.seq == seq) else {
            return vec![reply(workers, seq)];
        };
        let waiting = &mut self.waiting[at];
        waiting.replied.insert(workers);
        waiting.unsent.insert(workers);
        if waiting.replied.is_full() { self.waiting.swap_remove(at).messages() } else { Vec::new() }
    }

    /// Sends the replies so far. Later ones wait for each other again.
    pub fn flush(&mut self) -> Vec<Message> {
        let empty = WorkerSet::new(self.workers);
        let waiting = self.waiting.iter_mut().filter(|waiting| !waiting.unsent.is_empty());
        let flush = |waiting: &mut Waiting| {
            let messages = waiting.messages();
            waiting.unsent = empty.clone();
            messages
        };
        waiting.flat_map(flush).collect()
    }

    /// Waits no longer for other replies. Returns the messages to send; later replies go alone.
    pub fn split(&mut self) -> Vec<Message> {
        self.waiting.drain(..).flat_map(|waiting| waiting.messages()).collect()
    }
}

impl Waiting {
    fn messages(&self) -> Vec<Message> {
        self.unsent.runs().map(|workers| reply(workers, self.seq)).collect()
    }
}

fn reply(workers: WorkerRange, seq: u64) -> Message {
    from(workers, Message::Reply { seq, reply: Ok(Value::None) })
}

/// The reports of progress that has changed. Neighbours with the same progress are in one message.
pub(crate) fn progress(workers: WorkerRange, reported: &[Progress], now: &[Progress]) -> Vec<Message> {
    let mut reports = Vec::new();
    let mut at = 0;
    while at < now.len().min(workers.len()) {
        let same = now[at..].iter().take_while(|other| **other == now[at]).count();
        if reported.get(at..at + same).is_none_or(|before| before.iter().any(|before| *before != now[at])) {
            reports.push(from(workers.part(at, same), Message::Progress(now[at].clone())));
        }
        at += same;
    }
    reports
}

/// The workers of a node, and of the nodes behind it, that have left.
#[derive(Debug)]
pub struct Departures(WorkerSet);

impl Departures {
    /// None of `workers` has left.
    pub fn new(workers: WorkerRange) -> Self {
        Self(WorkerSet::new(workers))
    }

    /// The message that workers have left; none if it was sent for each of them, since the end of a node behind this one
    /// is reported after that of its workers.
    pub fn add(&mut self, workers: WorkerRange) -> Option<(Message, Priority)> {
        (self.0.insert(workers) > 0).then(|| left(workers))
    }
}

/// The message that workers have left.
pub(crate) fn left(workers: WorkerRange) -> (Message, Priority) {
    // Must not overtake the parts of the workers' large replies.
    let priority = if fault::is_planted(Fault::EarlyDeparture) { Priority::Urgent } else { Priority::Last };
    (from(workers, Message::Signal(Signal::Shutdown)), priority)
}

/// The abort with which a node answers the first failure of one of its workers, or of one behind it. The controller sends
/// the same abort, but later; it sends none for a failure that follows from an abort. `members` are the session's workers
/// since its last resize.
pub fn abort_after_failure(notice: &Notice, members: Option<&Members>) -> Option<Signal> {
    match notice {
        Notice::Failed { epoch, failure } if !failure.aborted => {
            let number = members.and_then(|members| members.worker(failure.worker)).unwrap_or(failure.worker);
            Some(Signal::Abort { epoch: *epoch, cause: failure.clone().of_worker(number).to_string().into() })
        }
        _ => None,
    }
}

/// The abort with which a node answers the loss of some of its workers, or of those behind it, in `epoch` or before. Later
/// epochs are not aborted: the workers may be replaced. `members` are the session's workers since its last resize.
pub fn abort_after_loss(epoch: u64, why: Error, members: Option<&Members>) -> Signal {
    let numbers = match (&why, members) {
        (Error::Lost(loss), Some(members)) => members.workers(loss.workers()),
        _ => WorkerRange::new(0..0),
    };
    let why = if numbers.is_empty() { why } else { why.of_workers(numbers) };
    Signal::Abort { epoch, cause: why.to_string().into() }
}

/// The messages that workers are lost: one for a node with those behind it, or one for each worker.
pub fn workers_lost(workers: WorkerRange, why: &Error) -> (Vec<Message>, Priority) {
    let (cause, whole) = match why {
        Error::Lost(loss) => (loss.cause.clone(), matches!(loss.peer, LostPeer::Node { .. })),
        other => (LossCause::Other(other.to_string()), false),
    };
    let message = |workers| from(workers, Message::Lost { cause: cause.clone(), whole });
    let messages =
        if whole { vec![message(workers)] } else { workers.iter().map(|worker| message(worker.into())).collect() };
    (messages, Priority::Urgent)
}
