//! Messages between a rank and the host.

use serde::{Deserialize, Serialize};

use super::call::SentCall;
use crate::nccl::background::Failure;
use crate::nccl::connection::Connection;

/// A message from a rank to the host.
#[derive(Debug, Deserialize, Serialize)]
pub(crate) enum Request {
    /// First request of a connection: opens the communicator of a unique id. The reply is [`Reply::Opened`].
    Open {
        /// The bytes of the unique id.
        id: Vec<u8>,
        /// Number of ranks of the communicator.
        ranks: usize,
    },
    /// First request of a connection: opens a communicator that a split has made. The reply is [`Reply::Opened`].
    OpenChild {
        /// The token of the communicator, from the host.
        token: u64,
    },
    /// Second request of a connection, after `Open`: joins as a rank. The reply is [`Reply::Joined`].
    Join {
        /// The rank.
        rank: usize,
        /// The ordinal of the device.
        device: usize,
    },
    /// Runs a unit. The reply is [`Reply::Done`].
    Unit {
        /// The number of the first collective, counted for the communicator.
        first_collective: u64,
        /// The calls.
        calls: Vec<SentCall>,
    },
    /// Requests the connections that a launch needs.
    Connect {
        /// The connections.
        connections: Vec<Connection>,
    },
    /// `ncclCommSplit`. The reply is [`Reply::Split`].
    Split {
        /// The number of the split, counted for the communicator.
        number: u64,
        /// `color`
        color: i32,
        /// `key`
        key: i32,
    },
    /// Cancels the running unit. The reply, when the host does not access the unit's memory any more, is
    /// [`Reply::Stopped`].
    Stop,
    /// The rank has completed its work, and finalizes or destroys the communicator.
    Leave,
    /// `ncclCommAbort`.
    Abort,
}

/// A message from the host to a rank.
#[derive(Debug, Deserialize, Serialize)]
pub(crate) enum Reply {
    /// The result of `Open` or `OpenChild`.
    Opened(Outcome<()>),
    /// The result of `Join`, once all ranks have joined or the join has failed.
    Joined(Outcome<Hosted>),
    /// The unit is done.
    Done,
    /// The unit is cancelled, and its memory is not accessed any more.
    Stopped,
    /// A split is done.
    Split {
        /// The number of the split.
        number: u64,
        /// The child of this rank; `None` without a color.
        child: Option<Child>,
    },
    /// The communicator has an error, at least on this rank.
    Failed(Failure),
    /// A rank has requested a connection.
    ConnectionRequested(usize, Connection),
    /// A rank has aborted the communicator.
    PeerAborted,
    /// All ranks have left the communicator.
    AllLeft,
}

/// The result of an operation that the host can refuse.
pub(crate) type Outcome<T> = Result<T, Failure>;

/// Whether the host has ranks of the communicator.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq, Serialize)]
pub(crate) struct Hosted {
    /// True if the host has at least one rank.
    pub(crate) has_ranks: bool,
}

/// A communicator that a split has made.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq, Serialize)]
pub(crate) struct Child {
    /// The token for `OpenChild`.
    pub(crate) token: u64,
    /// The rank in the child communicator.
    pub(crate) rank: usize,
    /// Number of ranks of the child communicator.
    pub(crate) ranks: usize,
    /// Whether the host has ranks of the child communicator.
    pub(crate) hosted: Hosted,
}
