//! What the workers of a node say, as the node passes it on.

use disco_core::WorkerId;
use disco_core::error::{Error, LossCause};
use disco_core::wire::Message;

use crate::engine::fault::{self, Fault};

/// The way of a message over the connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Priority {
    /// Ahead of frames and of the parts of large packets.
    Urgent,
    /// Behind all that was sent before.
    Last,
}

/// A message of a worker.
pub(crate) fn from(worker: WorkerId, message: Message) -> Message {
    Message::From { worker, message: Box::new(message) }
}

/// A worker has left.
pub(crate) fn left(worker: WorkerId) -> (Message, Priority) {
    // Behind the parts of the worker's large replies.
    let priority = if fault::is_planted(Fault::EarlyDeparture) { Priority::Urgent } else { Priority::Last };
    (from(worker, Message::Shutdown), priority)
}

/// A worker is lost.
pub(crate) fn lost(worker: WorkerId, why: &Error) -> (Message, Priority) {
    let why = match why {
        Error::Lost(loss) => loss.cause.clone(),
        other => LossCause::Other(other.to_string()),
    };
    (from(worker, Message::Lost(why)), Priority::Urgent)
}
