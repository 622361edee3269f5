//! Events of a lane, and the writes and actions that follow from them.

use std::io;
use std::net::SocketAddr;
use std::process::ExitStatus;
use std::sync::Arc;
use std::time::Duration;

use disco_core::channel::{Notice, Reply, Signal};
use disco_core::error::LossCause;
use disco_core::link::{KeeperCall, SharedFd};
use disco_core::shared_memory::Snapshot;
use disco_core::wire::{Message, Pieces, StoreCall, Transfer};
use disco_core::{Error, Result, WorkerId, WorkerRange};

use crate::handshake::{Keys, Nonce};

/// The id of a connection: its slot in a table, and the slot's generation.
#[allow(clippy::exhaustive_structs, reason = "a lane makes the ids of its connections")]
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Conn {
    /// The slot, from 0.
    pub slot: u32,
    /// How often the slot was used before.
    pub generation: u32,
}

/// Where a connection comes from.
#[allow(
    clippy::exhaustive_enums,
    missing_docs,
    reason = "engine and lane know all variants, whose texts name the fields"
)]
#[derive(Clone, Debug)]
pub enum Origin {
    /// A TCP connection, which may be a node's. The nonce is for its handshake.
    Tcp { address: SocketAddr, nonce: Nonce },
    /// A process of this user, which may be a worker.
    Unix { pid: Option<u32> },
}

/// An event. Peers (worker processes or nodes) are numbered from 0 in the order of workers, and processes of nodes in the
/// order of all nodes.
#[allow(
    clippy::exhaustive_enums,
    missing_docs,
    reason = "engine and lane know all variants, whose texts name the fields"
)]
#[derive(Debug)]
pub enum Event {
    /// A connection was accepted.
    Opened(Conn, Origin),
    /// The system failed to accept a connection.
    Closed(io::Error),
    /// Bytes of the handshake came, before [`Action::Listen`], at most the rest of an answer.
    Bytes(Conn, Vec<u8>),
    /// A message came.
    Message(Conn, Message),
    /// Bytes came that are not a message, or a message came without its descriptor.
    InvalidMessage(Conn, Error),
    /// A packet came that is a part of a large message; or bytes wait in the socket while the inbox accepts no large reply.
    /// Counts as a sign of life.
    PartReceived(Conn),
    /// The connection was closed or has failed, with the system's reason if it gives one.
    Hung(Conn, Option<String>),
    /// A write was refused: the other end has left this many bytes unread.
    Full(Conn, usize),
    /// The other end has closed the connection or is about to, and has not acknowledged this many bytes.
    Unacknowledged(Conn, usize),
    /// The process of a peer, or of a node behind one, is watched from now on. `Some` is the id of a child.
    Started(usize, Option<u32>),
    /// Such a process has ended, with its status if it is a child. Its messages were handled before.
    Ended(usize, Option<ExitStatus>),
    /// The peer in a place is to be closed: it has violated the ring's protocol, or its launcher tells why it can't go on.
    Accused(usize, LossCause),
    /// A signal for all peers, which goes ahead of frames.
    Signal(Signal),
    /// The session closes the lane. Peers have this long to leave by themselves.
    Close(Duration),
    /// The lane was dropped.
    Dropped,
    /// The reactor thread has failed, with the reason.
    Broken(String),
    /// The time of [`Controller::next_timeout`](super::Controller::next_timeout) has come.
    Timer,
}

/// The order of a packet on its connection.
#[allow(clippy::exhaustive_enums, reason = "engine and lane know all variants")]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Order {
    /// Ahead of frames.
    Urgent,
    /// Ahead of frames, with the descriptor of the ring.
    WithRing,
    /// Behind all other packets.
    Last,
    /// Behind all other packets; may wait until another packet is sent, or until [`Action::Flush`].
    Held,
    /// In parts between frames: the tensors of a later frame.
    Ahead,
    /// Stops the transfer; the other end is told if parts of it were sent.
    Withdrawn,
}

/// A packet for a connection. The thread that brought the event writes it before the next event.
#[non_exhaustive]
#[derive(Clone, Debug)]
pub struct Write {
    /// The connection.
    pub conn: Conn,
    /// The packet, encoded.
    pub bytes: Arc<[u8]>,
    /// Its place among the packets of the connection.
    pub order: Order,
    /// Large tensors of the frame in shared memory, sent as a descriptor. The order is [`Order::Last`] then.
    pub snapshot: Option<Arc<Snapshot>>,
    /// The packet in place of `bytes`, with [`Order::Last`]; or the tensors of a transfer, with [`Order::Ahead`].
    pub pieces: Option<Arc<Pieces>>,
    /// The transfer of these tensors; or the transfer that has carried the frame's tensors.
    pub transfer: Option<Arc<Transfer>>,
}

/// An action for the reactor thread, which carries out actions in order.
#[allow(
    clippy::exhaustive_enums,
    missing_docs,
    reason = "engine and lane know all variants, whose texts name the fields"
)]
#[derive(Debug)]
pub enum Action {
    /// The connection is encrypted with these keys from now on.
    Encrypt(Conn, Keys),
    /// The connection carries messages from now on, of at most this many bytes.
    Listen(Conn, usize),
    /// Closes the connection in both directions.
    Close(Conn),
    /// Sends packets that were written as [`Order::Held`].
    Flush,
    /// Closes the listener.
    StopAccepting,
    /// Sends the status of the session over the connection.
    SendStatus(Conn),
    /// Watches the process of a peer that was started elsewhere. [`Event::Started`] follows if that is possible.
    Watch { peer: usize, pid: u32, conn: Conn },
    /// Kills the process of a peer, or of a node behind one.
    Kill(usize),
    /// The start of the lane has succeeded or failed.
    Started(Result<()>),
    /// Replies without a value to command `seq`, for the inbox.
    Replies { workers: WorkerRange, seq: u64 },
    /// A reply to command `seq`, for the inbox.
    Reply { worker: WorkerId, seq: u64, reply: Reply },
    /// A notice for the inbox.
    Notice { worker: WorkerId, notice: Notice },
    /// The recording of a worker, for the inbox.
    Recording { worker: WorkerId, bytes: Arc<[u8]> },
    /// The lane, which was full, has room again.
    Room,
    /// Workers have left.
    Left(WorkerRange),
    /// Workers are lost, with the reason.
    Lost(WorkerRange, Error),
    /// A call of the store in an epoch. The answer, with this id, goes over the connection.
    CallStore { conn: Conn, id: u64, epoch: u64, call: StoreCall },
    /// Stores a descriptor that came with the message. The answer goes over the connection.
    Share { conn: Conn, id: u64, name: SharedFd },
    /// Closes a shared descriptor.
    Unshare(SharedFd),
    /// Sends a shared descriptor over the connection.
    Receive { conn: Conn, id: u64, name: SharedFd },
    /// A call of a worker to the keeper of memory, which may have come with a descriptor. The answer goes over the connection.
    CallKeeper { conn: Conn, id: u64, worker: WorkerId, call: KeeperCall },
    /// Closes all descriptors that a worker has shared.
    Forget(WorkerId),
    /// Discards all memory that is kept for a worker. No other worker replaces it.
    Discard(WorkerId),
    /// A line that a worker of a node has printed, on standard error if `is_err`.
    Output { node: u32, worker: WorkerId, is_err: bool, line: Arc<[u8]> },
    /// Retires the peer's reader of the ring.
    Retire(usize),
    /// All peers have ended: the reactor thread ends.
    Over,
}
