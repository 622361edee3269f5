//! Messages of a node's workers, as the node relays them to the controller.

use disco_core::error::{Error, LossCause};
use disco_core::wire::Message;
use disco_core::{Command, Frame, Value, WorkerId};

use crate::engine::fault::{self, Fault};

/// The order of a message on the connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Priority {
    /// Ahead of frames and of the parts of large packets.
    Urgent,
    /// Behind all earlier packets.
    Last,
}

/// Wraps a message of a worker.
pub(crate) fn from(worker: WorkerId, message: Message) -> Message {
    Message::From { worker, message: Box::new(message) }
}

/// Replies without a value to commands that all workers of a node reply to. They go up in one message.
#[derive(Debug, Default)]
pub(crate) struct Replies {
    /// The number of each command, and the workers that have replied.
    waiting: Vec<(u64, Vec<WorkerId>)>,
}

impl Replies {
    /// Expects the replies to `frame`, if all `workers` reply to it. Call it before the workers get the frame.
    pub(crate) fn expect(&mut self, frame: &Frame, workers: usize) {
        if matches!(frame.command(), Command::SyncAll) && workers > 1 {
            self.waiting.push((frame.seq(), Vec::with_capacity(workers)));
        }
    }

    /// Adds a reply of one of `workers`. Returns the message to send, if it does not wait for other replies.
    pub(crate) fn add(&mut self, worker: WorkerId, seq: u64, workers: usize) -> Option<Message> {
        let Some(at) = self.waiting.iter().position(|(expected, _)| *expected == seq) else {
            return Some(reply(worker, seq));
        };
        let replied = &mut self.waiting[at].1;
        if !replied.contains(&worker) {
            replied.push(worker);
        }
        (replied.len() == workers).then(|| {
            self.waiting.swap_remove(at);
            Message::Replies { seq }
        })
    }

    /// Waits no longer for other replies. Returns the messages to send; later replies go alone.
    pub(crate) fn split(&mut self) -> Vec<Message> {
        let all = self.waiting.drain(..);
        all.flat_map(|(seq, workers)| workers.into_iter().map(move |worker| reply(worker, seq))).collect()
    }
}

fn reply(worker: WorkerId, seq: u64) -> Message {
    from(worker, Message::Reply { seq, reply: Ok(Value::None) })
}

/// The message that a worker has left.
pub(crate) fn left(worker: WorkerId) -> (Message, Priority) {
    // Must not overtake the parts of the worker's large replies.
    let priority = if fault::is_planted(Fault::EarlyDeparture) { Priority::Urgent } else { Priority::Last };
    (from(worker, Message::Shutdown), priority)
}

/// The message that a worker is lost.
pub(crate) fn lost(worker: WorkerId, why: &Error) -> (Message, Priority) {
    let why = match why {
        Error::Lost(loss) => loss.cause.clone(),
        other => LossCause::Other(other.to_string()),
    };
    (from(worker, Message::Lost(why)), Priority::Urgent)
}
