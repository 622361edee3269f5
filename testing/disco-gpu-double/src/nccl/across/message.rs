//! Messages between a rank and the host.

use super::call::SentCall;
use super::wire::{Reader, Writer};
use crate::nccl::abi::UniqueId;
use crate::nccl::background::Failure;
use crate::nccl::connection::Connection;

/// A message from a rank to the host.
pub(crate) enum Request {
    /// First request of a connection: opens the communicator of a unique id. The reply is [`Reply::Opened`].
    Open {
        /// The unique id.
        id: UniqueId,
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
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Hosted {
    /// True if the host has at least one rank.
    pub(crate) has_ranks: bool,
}

/// A communicator that a split has made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
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

impl Request {
    /// Encodes the message as a frame.
    pub(crate) fn write(&self) -> Writer {
        let mut frame = Writer::default();
        match self {
            Self::Open { id, ranks } => _ = frame.word(0_u64).bytes(&id.internal).word(*ranks as u64),
            Self::OpenChild { token } => _ = frame.word(1_u64).word(*token),
            Self::Join { rank, device } => _ = frame.word(2_u64).word(*rank as u64).word(*device as u64),
            Self::Unit { first_collective, calls } => {
                frame.word(3_u64).word(*first_collective).word(calls.len() as u64);
                calls.iter().for_each(|call| call.write(&mut frame));
            }
            Self::Split { number, color, key } => _ = frame.word(4_u64).word(*number).signed(*color).signed(*key),
            Self::Stop => _ = frame.word(5_u64),
            Self::Leave => _ = frame.word(6_u64),
            Self::Abort => _ = frame.word(7_u64),
            Self::Connect { connections } => {
                frame.word(8_u64).word(connections.len() as u64);
                connections.iter().for_each(|connection| write_connection(*connection, &mut frame));
            }
        }
        frame
    }

    /// Decodes a request. `None` if the frame is invalid.
    pub(crate) fn read(frame: &[u8]) -> Option<Self> {
        let mut from = Reader::new(frame);
        let request = match from.word()? {
            0 => {
                let internal = from.bytes()?.try_into().ok()?;
                Self::Open { id: UniqueId { internal }, ranks: from.index()? }
            }
            1 => Self::OpenChild { token: from.word()? },
            2 => Self::Join { rank: from.index()?, device: from.index()? },
            3 => {
                let (first_collective, calls) = (from.word()?, from.word()?);
                let calls = (0..calls).map(|_| SentCall::read(&mut from)).collect::<Option<_>>()?;
                Self::Unit { first_collective, calls }
            }
            4 => Self::Split { number: from.word()?, color: from.signed()?, key: from.signed()? },
            5 => Self::Stop,
            6 => Self::Leave,
            7 => Self::Abort,
            8 => {
                let count = from.word()?;
                let connections = (0..count).map(|_| read_connection(&mut from)).collect::<Option<_>>()?;
                Self::Connect { connections }
            }
            _ => return None,
        };
        from.is_empty().then_some(request)
    }
}

impl Reply {
    /// Encodes the message as a frame.
    pub(crate) fn write(&self) -> Writer {
        let mut frame = Writer::default();
        match self {
            Self::Opened(Ok(())) => _ = frame.word(0_u64),
            Self::Opened(Err(failure)) => write_failure(1, failure, &mut frame),
            Self::Joined(Ok(hosted)) => _ = frame.word(2_u64).word(hosted.has_ranks),
            Self::Joined(Err(failure)) => write_failure(3, failure, &mut frame),
            Self::Done => _ = frame.word(4_u64),
            Self::Stopped => _ = frame.word(5_u64),
            Self::Split { number, child: None } => _ = frame.word(6_u64).word(*number),
            Self::Split { number, child: Some(Child { token, rank, ranks, hosted }) } => {
                frame.word(7_u64).word(*number).word(*token).word(*rank as u64).word(*ranks as u64);
                frame.word(hosted.has_ranks);
            }
            Self::Failed(failure) => write_failure(8, failure, &mut frame),
            Self::PeerAborted => _ = frame.word(9_u64),
            Self::AllLeft => _ = frame.word(10_u64),
            Self::ConnectionRequested(rank, connection) => {
                frame.word(11_u64).word(*rank as u64);
                write_connection(*connection, &mut frame);
            }
        }
        frame
    }

    /// Decodes a reply. `None` if the frame is invalid.
    pub(crate) fn read(frame: &[u8]) -> Option<Self> {
        let mut from = Reader::new(frame);
        let reply = match from.word()? {
            0 => Self::Opened(Ok(())),
            1 => Self::Opened(Err(read_failure(&mut from)?)),
            2 => Self::Joined(Ok(Hosted { has_ranks: from.word()? != 0 })),
            3 => Self::Joined(Err(read_failure(&mut from)?)),
            4 => Self::Done,
            5 => Self::Stopped,
            6 => Self::Split { number: from.word()?, child: None },
            7 => {
                let number = from.word()?;
                let (token, rank, ranks) = (from.word()?, from.index()?, from.index()?);
                let hosted = Hosted { has_ranks: from.word()? != 0 };
                Self::Split { number, child: Some(Child { token, rank, ranks, hosted }) }
            }
            8 => Self::Failed(read_failure(&mut from)?),
            9 => Self::PeerAborted,
            10 => Self::AllLeft,
            11 => Self::ConnectionRequested(from.index()?, read_connection(&mut from)?),
            _ => return None,
        };
        from.is_empty().then_some(reply)
    }
}

fn write_connection(connection: Connection, to: &mut Writer) {
    match connection {
        Connection::All => _ = to.word(0_u64).word(0_u64),
        Connection::To(rank) => _ = to.word(1_u64).word(rank as u64),
        Connection::From(rank) => _ = to.word(2_u64).word(rank as u64),
    }
}

fn read_connection(from: &mut Reader<'_>) -> Option<Connection> {
    let (tag, rank) = (from.word()?, from.index()?);
    match tag {
        0 => Some(Connection::All),
        1 => Some(Connection::To(rank)),
        2 => Some(Connection::From(rank)),
        _ => None,
    }
}

fn write_failure(tag: u64, Failure(code, why): &Failure, to: &mut Writer) {
    to.word(tag).signed(code.0).bytes(why.as_bytes());
}

fn read_failure(from: &mut Reader<'_>) -> Option<Failure> {
    Some(Failure(crate::nccl::abi::Code(from.signed()?), from.text()?))
}
