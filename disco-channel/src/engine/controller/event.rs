//! What happens to a lane, and what the engine wants done about it.

use std::io;
use std::net::SocketAddr;
use std::process::ExitStatus;
use std::sync::Arc;
use std::time::Duration;

use disco_core::channel::{Notice, Reply, Signal};
use disco_core::error::LossCause;
use disco_core::link::SharedFd;
use disco_core::shared_memory::Snapshot;
use disco_core::wire::{Message, Pieces, StoreCall, Transfer};
use disco_core::{Error, Result, WorkerId, WorkerRange};

use crate::handshake::Nonce;

/// A connection: its place in a table, and how often the place has been used before.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Conn {
    pub(crate) slot: u32,
    pub(crate) generation: u32,
}

/// Where a connection comes from.
#[derive(Clone, Debug)]
pub(crate) enum Origin {
    /// A node, perhaps, to which this nonce goes.
    Tcp { address: SocketAddr, nonce: Nonce },
    /// A process of this user, perhaps a worker.
    Unix { pid: Option<u32> },
}

/// Something that has happened. A peer is a worker process or a node, counted from 0 in the order of workers.
#[derive(Debug)]
pub(crate) enum Event {
    /// A connection was accepted.
    Opened(Conn, Origin),
    /// The system accepts no connection, for now.
    Closed(io::Error),
    /// Bytes came before [`Action::Listen`], no more than are left of an answer of the handshake.
    Bytes(Conn, Vec<u8>),
    /// A message came.
    Message(Conn, Message),
    /// Bytes came that are no message, or a message without the descriptor that belongs to it.
    Garbage(Conn, Error),
    /// Bytes of a message came, of which others are still to come; or such bytes wait in the socket, as the inbox takes no large reply.
    Heard(Conn),
    /// The other end has closed the connection or is gone; why, if the system says.
    Hung(Conn, Option<String>),
    /// The connection did not take something: the other end has left so many bytes unread.
    Full(Conn, usize),
    /// The process of a peer was started by this one, as `Some` of its id, or has been found.
    Started(usize, Option<u32>),
    /// The process of a peer has ended; how is known of children. What it had sent was heard before.
    Ended(usize, Option<ExitStatus>),
    /// A peer can't go on, and why.
    Accused(usize, LossCause),
    /// Something goes to all peers ahead of frames.
    Signal(Signal),
    /// The lane is to end: peers have so long to leave by themselves.
    Close(Duration),
    /// Nobody has the lane any more.
    Dropped,
    /// The thread that carries out actions is gone, and why.
    Broken(String),
    /// It is time to look.
    Timer,
}

/// How a packet goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Order {
    /// Ahead of frames.
    Urgent,
    /// Ahead of frames, with the descriptor of the ring.
    WithRing,
    /// Behind everything.
    Last,
    /// Behind everything; it may wait until something else goes, or until [`Action::Flush`].
    Held,
    /// In parts between frames: tensors ahead of their frame.
    Ahead,
    /// The tensors of the transfer go no further; the other end is told if some have gone.
    Withdrawn,
}

/// Bytes that are to go over a connection. Whoever has brought the event writes them before the next one.
#[derive(Clone, Debug)]
pub(crate) struct Write {
    pub(crate) conn: Conn,
    pub(crate) bytes: Arc<[u8]>,
    pub(crate) order: Order,
    /// Large tensors of the frame, which go along as a descriptor; the order is [`Order::Last`] then.
    pub(crate) snapshot: Option<Arc<Snapshot>>,
    /// The packet, in place of `bytes`, and the order is [`Order::Last`]; or the tensors of a transfer.
    pub(crate) pieces: Option<Arc<Pieces>>,
    /// The transfer of these tensors, or the one in which the tensors of a frame went ahead.
    pub(crate) transfer: Option<Arc<Transfer>>,
}

/// Something to be done in order, by one thread.
#[derive(Debug)]
pub(crate) enum Action {
    /// Messages come over the connection from now on, none of which is larger.
    Listen(Conn, usize),
    /// Nothing more goes over the connection either way.
    Close(Conn),
    /// Packets that were written as [`Order::Held`] go now.
    Flush,
    /// Nobody else is let in.
    StopAccepting,
    /// A peer has come whose process this one has not started: [`Event::Started`] if it can be watched.
    Watch { peer: usize, pid: u32, conn: Conn },
    /// Ends the process of a peer.
    Kill(usize),
    /// The start of the lane has succeeded or failed.
    Started(Result<()>),
    /// A reply for the inbox.
    Reply { worker: WorkerId, seq: u64, reply: Reply },
    /// A notice for the inbox.
    Notice { worker: WorkerId, notice: Notice },
    /// The lane has room.
    Room,
    /// Workers have left.
    Left(WorkerRange),
    /// Workers are lost, and why.
    Lost(WorkerRange, Error),
    /// A call of the store, to be answered over the connection.
    Ask { conn: Conn, id: u64, epoch: u64, call: StoreCall },
    /// A descriptor came with the message before; to be answered over the connection.
    Share { conn: Conn, id: u64, name: SharedFd },
    /// A descriptor is taken back.
    Unshare(SharedFd),
    /// A descriptor is wanted over the connection.
    Receive { conn: Conn, id: u64, name: SharedFd },
    /// All descriptors of a worker are gone.
    Forget(WorkerId),
    /// A line that a worker has printed.
    Output { from: String, is_err: bool, line: Arc<[u8]> },
    /// The ring waits for this peer no more.
    Retire(usize),
    /// Nothing is left of any peer.
    Over,
}
