//! Messages of a node's workers, as the node relays them to the controller.

use disco_core::WorkerId;
use disco_core::error::{Error, LossCause};
use disco_core::wire::Message;

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
