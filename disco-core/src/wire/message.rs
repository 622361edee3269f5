//! Messages of a connection between processes.
//!
//! ```text
//! worker                                                          controller
//! HELLO   magic, version, token, worker, function names…  ──▶
//!                                    ◀── WELCOME configuration
//! REPLY   command's number, 0, value │ 1, failure… ──▶
//!                                    ◀── FRAME    number, frame (where commands go over the connection)
//!                                                 or number, frame, transfer with its large tensors
//! NOTICE  notice ──▶                     ◀── ABORT    epoch, cause
//! PROGRESS  state of the worker ──▶      ◀── SHUTDOWN, CANCEL command, cause, SETTLE command, cause or none
//! RECORDING what it has recorded ──▶     ◀── COLLECT  (where they share no memory)
//! STORE_REQUEST  number, epoch, call ──▶  ◀── ANSWER   number, value or error
//! SHARE   number, name  (with a descriptor) ──▶          ◀── ANSWER   none
//! UNSHARE name ──▶
//! KEEPER_REQUEST  number, call (with a descriptor, to keep it) ──▶  ◀── ANSWER value │ DESCRIPTOR (with it)
//!                                    ◀── AHEAD    transfer, bytes left, bytes: large tensors of a later FRAME
//!                                    ◀── WITHDRAW transfer: no FRAME comes for it
//! BESIDE  (with a descriptor: large tensors of the next REPLY) ──▶  ◀── BESIDE (of the next FRAME)
//! RECEIVE number, name ──▶               ◀── DESCRIPTOR number (with the descriptor) │ ANSWER error
//! CREDIT  frames and bytes taken ──▶
//! BYE     why ──▶                        ◀── BYE      why
//!
//! node (its workers' messages come as FROM workers, …)                    controller
//! JOIN    name, rack, function names…  ──▶
//!                                    ◀── RELAY    whether its children may be on other machines
//! LISTENS addresses for its children ──▶
//!                                    ◀── ASSIGN   node, workers, nodes behind it, configuration │ LATE
//!                                                 or REDIRECT node, time, addresses of its parent; then it is closed
//! READY ──▶                              ◀── FRAME, AHEAD, WITHDRAW, ABORT, CANCEL, SETTLE, SHUTDOWN, COLLECT, ANSWER
//! FROM    workers, REPLY without a value │ PROGRESS │ LOST why │ SHUTDOWN: they have left ──▶
//! FROM    worker, REPLY │ NOTICE │ RECORDING │ OUTPUT of its process ──▶
//! STORE_REQUEST, CREDIT as a worker ──▶
//! ALIVE   its time, the controller's ──▶  ◀── ALIVE    its time: each heartbeat, answered by the node's
//!                                    ◀── REPLACE  lost workers, addresses at which new ones join as a node
//! LEFT    remaining workers, or BYE ──▶  ◀── BYE
//!
//! client of the node lane, with the token                         controller
//! ASK_STATUS ──▶                         ◀── STATUS   status of the session as JSON, or BYE
//! ```
//!
//! Each message is one packet. A large packet is split into several PARTs, between which other packets may be sent. The
//! first message of a worker is HELLO, answered with WELCOME or BYE; the first message of a node is JOIN, answered with
//! ASSIGN or REDIRECT, after the node has proved that it knows the session's token. A node that relays is the controller
//! of its children: to them, it speaks as the right-hand end. Either end may close the connection at any
//! time, which ends the session with that peer; BYE tells the reason.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use super::action::{
    ABORT, AHEAD, ALIVE, ANSWER, ASK_STATUS, ASSIGN, BESIDE, BYE, CANCEL, COLLECT, CREDIT, DESCRIPTOR, FRAME, FROM,
    HELLO, JOIN, KEEPER_REQUEST, LATE, LEFT, LISTENS, LOST, NOTICE, OUTPUT, PART, PROGRESS, READY, RECEIVE, RECORDING,
    REDIRECT, RELAY, REPLACE, REPLY, SETTLE, SHARE, SHUTDOWN, STATUS, STORE_REQUEST, TAKEN, UNSHARE, WELCOME, WITHDRAW,
};
use super::command::write;
use super::field::{Field, fields, put_clipped, variants};
use super::introduction::{Assignment, Hello, Join, Welcome};
use super::{Packet, StoreCall, WireError, Writer, snapshot, value};
use crate::activity::Progress;
use crate::error::{Error, Failure, LossCause, Result};
use crate::id::WorkerId;
use crate::link::{KeeperCall, KeptName};
use crate::shared_memory::Snapshot;
use crate::signal::{Reply, Signal};
use crate::status::Status;
use crate::value::Value;
use crate::worker_range::WorkerRange;

/// Largest number of characters of a message in texts.
const MAX_SHOWN_CHARS: usize = 100;

/// A message.
#[non_exhaustive]
#[derive(Clone, Debug)]
pub enum Message {
    /// A worker introduces itself.
    Hello(Hello),
    /// The controller accepts the worker.
    Welcome(Welcome),
    /// The sender closes the connection, for this reason.
    Bye(String),
    /// The reply to a command.
    Reply {
        /// The command's number.
        seq: u64,
        /// The reply.
        reply: Reply,
    },
    /// A reply whose value this end has no memory for; only decoding makes it.
    Unread {
        /// The command's number.
        seq: u64,
        /// The reason. Its worker is that of the connection or of [`Message::From`].
        failure: Arc<Failure>,
    },
    /// A notice, encoded by [`encode_notice`](super::encode_notice).
    Notice(Arc<[u8]>),
    /// The worker's progress.
    Progress(Progress),
    /// A frame, encoded by [`Frame::bytes`](crate::Frame::bytes).
    Frame {
        /// The frame's number.
        seq: u64,
        /// The packets.
        bytes: Arc<[u8]>,
        /// The transfer with the frame's large tensors. All its parts precede the frame.
        transfer: Option<u64>,
    },
    /// A part of a transfer: large tensors of a frame that is still to come.
    Ahead {
        /// The transfer's number.
        transfer: u64,
        /// Bytes of the transfer that are still to come.
        left: u64,
        /// The part.
        bytes: Arc<[u8]>,
    },
    /// A transfer is cancelled: neither more parts nor its frame follow.
    Withdraw(u64),
    /// A signal to workers. [`Signal::Shutdown`] from workers: they have left.
    Signal(Signal),
    /// Returns credit: the receiver of frames has capacity again.
    Credit {
        /// Number of frames that the worker has taken from the connection.
        frames: u64,
        /// Total size of these frames in bytes.
        bytes: u64,
    },
    /// Requests a call of the store.
    StoreRequest {
        /// Identifies the answer.
        id: u64,
        /// The worker's epoch.
        epoch: u64,
        /// The call.
        call: StoreCall,
    },
    /// Carries the requested descriptor.
    Descriptor {
        /// The number of the request.
        id: u64,
    },
    /// The result of a request, or the reason why there is no descriptor.
    Answer {
        /// The number of the request.
        id: u64,
        /// The result.
        result: Result<Value>,
    },
    /// Carries a descriptor and registers it under a name; answered once it is registered.
    Share {
        /// Identifies the answer.
        id: u64,
        /// The name of the descriptor.
        name: u64,
    },
    /// Unregisters the descriptor with this name.
    Unshare(u64),
    /// Requests a descriptor.
    Receive {
        /// Identifies the answer.
        id: u64,
        /// The name of the descriptor.
        name: u64,
    },
    /// Requests a call of the keeper of memory. It carries the descriptor of memory that is to be kept.
    KeeperRequest {
        /// Identifies the answer.
        id: u64,
        /// The call.
        call: KeeperCall,
    },
    /// A part of a large packet; smaller packets may overtake it.
    Part {
        /// Bytes of the packet that are still to come.
        left: u64,
        /// The part.
        bytes: Arc<[u8]>,
    },
    /// Carries the descriptor of the memory with the large tensors of the next FRAME or REPLY.
    Beside,
    /// A node introduces itself.
    Join(Join),
    /// The controller accepts the node and assigns its workers.
    Assign(Assignment),
    /// All workers of a node have started.
    Ready,
    /// A heartbeat, whose times compare the clocks of both ends.
    Alive(Times),
    /// The same message of each of some workers of a node, or of nodes behind it.
    From {
        /// The workers.
        workers: WorkerRange,
        /// The message.
        message: Box<Message>,
    },
    /// The node will relay for other nodes, its children. It has to listen for them.
    Relay {
        /// Whether children may be on other machines.
        everywhere: bool,
    },
    /// The addresses at which the node listens for its children, each as `HOST:PORT`.
    Listens(Vec<String>),
    /// The node has to join another node, its parent, in place of the controller; or the controller at another address,
    /// where it waits for nodes in the places of lost ones.
    Redirect {
        /// The number that the node gets; 0 if the controller chooses it at the other address.
        node: u32,
        /// The addresses, each as `HOST:PORT`.
        addresses: Vec<String>,
        /// Time limit for the node to be accepted there.
        start: Duration,
    },
    /// A line of a worker's output.
    Output {
        /// Whether the line is from standard error rather than standard output.
        is_err: bool,
        /// The line without its line break.
        line: Arc<[u8]>,
    },
    /// Workers are lost.
    Lost {
        /// Why.
        cause: LossCause,
        /// Whether their node is lost, with the nodes behind it, rather than a single worker.
        whole: bool,
    },
    /// The workers of a node have left, except the workers listed here.
    Left(String),
    /// The session has started without this node, which may try again: another session may follow.
    Late,
    /// Requests the status of the session.
    AskStatus,
    /// The status of the session.
    Status(Box<Status>),
    /// A [recording](crate::activity::Recording) of a worker.
    Recording(Arc<[u8]>),
}

/// The times of a heartbeat, in nanoseconds of monotonic clocks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[expect(clippy::exhaustive_structs, reason = "another field is another version of the protocol")]
pub struct Times {
    /// When the heartbeat was sent, on the sender's clock. 0: the sender compares no clocks.
    pub sent: u64,
    /// [`Self::sent`] of the receiver's last heartbeat, or 0 for none.
    pub echo: u64,
    /// How long ago that heartbeat came, on the sender's clock.
    pub held: u64,
}

/// A reply as two packets.
#[non_exhaustive]
#[derive(Debug)]
pub struct Beside {
    /// Sent with the descriptor of `snapshot`.
    pub first: Vec<u8>,
    /// The reply's large tensor.
    pub snapshot: Arc<Snapshot>,
    /// The rest of the reply.
    pub packet: Vec<u8>,
}

impl Message {
    /// Encodes the message as a packet.
    ///
    /// # Errors
    /// The packet would be too large.
    pub fn encode(&self) -> Result<Vec<u8>> {
        let (mut to, mut args) = (Writer::default(), Vec::new());
        self.put(&mut args);
        write(&mut to, &args, &[])?;
        Ok(to.into_bytes())
    }

    /// Encodes a reply whose large tensor is in shared memory. None if the reply has no large tensor, or shared memory is
    /// exhausted.
    pub fn encode_beside(seq: u64, reply: &Reply) -> Option<Beside> {
        let snapshot = snapshot(reply.as_ref().ok())?;
        let first = Message::Beside.encode().ok()?;
        let (mut to, mut args) = (Writer::with_memory_beside(), Vec::new());
        Message::Reply { seq, reply: reply.clone() }.put(&mut args);
        write(&mut to, &args, &[]).ok()?;
        Some(Beside { first, snapshot, packet: to.into_bytes() })
    }

    /// Decodes a message.
    ///
    /// # Errors
    /// The packet is not a valid message.
    pub fn decode(mut packet: Packet<'_>) -> Result<Self, WireError> {
        let message = Field::take(&mut packet)?;
        packet.end()?;
        Ok(message)
    }
}

variants!(Message, "message", {
    HELLO => Hello(hello),
    WELCOME => Welcome(welcome),
    BYE => Bye(why),
    NOTICE => Notice(packet),
    PROGRESS => Progress(progress),
    AHEAD => Ahead { transfer, left, bytes },
    WITHDRAW => Withdraw(transfer),
    CREDIT => Credit { frames, bytes },
    STORE_REQUEST => StoreRequest { id, epoch, call },
    DESCRIPTOR => Descriptor { id },
    ANSWER => Answer { id, result },
    SHARE => Share { id, name },
    UNSHARE => Unshare(name),
    RECEIVE => Receive { id, name },
    KEEPER_REQUEST => KeeperRequest { id, call },
    PART => Part { left, bytes },
    BESIDE => Beside,
    JOIN => Join(join),
    ASSIGN => Assign(assignment),
    READY => Ready,
    ALIVE => Alive(times),
    RELAY => Relay { everywhere },
    LISTENS => Listens(addresses),
    REDIRECT => Redirect { node, start, addresses },
    OUTPUT => Output { is_err, line },
    LEFT => Left(stuck),
    LATE => Late,
    ASK_STATUS => AskStatus,
    STATUS => Status(status),
    RECORDING => Recording(bytes),
} put(args) {
    Message::Reply { seq, reply } => put_reply(*seq, reply, args),
    Message::Unread { seq, failure } => put_reply(*seq, &Err(failure.clone()), args),
    // As `write_frame`.
    Message::Frame { seq, bytes, transfer } => {
        args.push(Value::Int(FRAME));
        seq.put(args);
        bytes.put(args);
        args.extend(transfer.map(|transfer| Value::Int(transfer as i64)));
    },
    Message::Signal(signal) => signal.put(args),
    Message::Lost { cause, whole } => {
        args.push(Value::Int(LOST));
        put_clipped(cause, args);
        whole.put(args);
    },
    Message::From { workers, message } => {
        args.push(Value::Int(FROM));
        workers.put(args);
        message.put(args);
    },
} take(packet) {
    REPLY => {
        let seq = packet.number()?;
        match Reply::take(packet) {
            Err(error @ WireError::NoMemory { .. }) => {
                packet.skip();
                Ok(Message::Unread { seq, failure: unread(seq, &error.into()).into() })
            }
            reply => Ok(Message::Reply { seq, reply: reply? }),
        }
    },
    FRAME => {
        let (seq, bytes) = (packet.number()?, packet.bytes()?);
        let transfer = if packet.left() > 0 { Some(packet.number()?) } else { None };
        Ok(Message::Frame { seq, bytes, transfer })
    },
    LOST => Ok(Message::Lost { cause: Field::take(packet)?, whole: packet.bool()? }),
    number @ (ABORT | CANCEL | SETTLE | TAKEN | REPLACE | SHUTDOWN | COLLECT) => {
        Signal::take_variant(number, packet).map(Message::Signal)
    },
    FROM => {
        let workers = Field::take(packet)?;
        match packet.int()? {
            FROM => Err(WireError::Unknown { what: "message", number: FROM }),
            number => Ok(Message::From { workers, message: Box::new(Self::take_variant(number, packet)?) }),
        }
    },
});

variants!(Signal, "signal", {
    CANCEL => Cancel { command, cause },
    SETTLE => Settle { command, breaks },
    TAKEN => Taken { worker, command, count },
    REPLACE => Replace { workers, addresses },
    SHUTDOWN => Shutdown,
    COLLECT => Collect { last },
} put(args) {
    // An epoch may be `u64::MAX`.
    Signal::Abort { epoch, cause } => {
        args.extend([Value::Int(ABORT), Value::Int(*epoch as i64)]);
        cause.put(args);
    },
} take(packet) {
    ABORT => Ok(Signal::Abort { epoch: packet.int()? as u64, cause: packet.string()? }),
});

fields!(Times { sent, echo, held });

variants!(StoreCall, "call of the store", {
    0 => Set(key, value),
    1 => Get(key),
    2 => Wait(key, deadline),
    3 => Add(key, amount),
    4 => CompareAndSet(key, expected, new),
    5 => Delete(key),
});

fn put_reply(seq: u64, reply: &Reply, args: &mut Vec<Value>) {
    args.push(Value::Int(REPLY));
    seq.put(args);
    reply.put(args);
}

fields!(KeptName { is_shared, name });

variants!(KeeperCall, "call of the keeper", {
    0 => Find(name),
    1 => Keep(name),
    2 => Discard(name),
});

/// JSON, which can be made of any status: its keys are strings, and its numbers are finite.
impl Field for Box<Status> {
    fn put(&self, args: &mut Vec<Value>) {
        args.push(Value::Bytes(serde_json::to_vec(self).unwrap_or_default().into()));
    }

    fn take(packet: &mut Packet<'_>) -> Result<Self, WireError> {
        serde_json::from_slice(&packet.bytes()?).map_err(|_| WireError::Expected("the status of a session"))
    }
}

/// A description, truncated if it is long.
impl fmt::Display for Message {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        struct Short<'a, 'b>(&'a mut fmt::Formatter<'b>, usize);

        impl fmt::Write for Short<'_, '_> {
            fn write_str(&mut self, text: &str) -> fmt::Result {
                let cut: String = text.chars().take(self.1).collect();
                self.0.write_str(&cut)?;
                self.1 -= cut.chars().count();
                if self.1 > 0 { Ok(()) } else { Err(fmt::Error) }
            }
        }

        let mut short = Short(f, MAX_SHOWN_CHARS);
        let written = match self {
            Message::Signal(signal) => fmt::write(&mut short, format_args!("{signal:?}")),
            other => fmt::write(&mut short, format_args!("{other:?}")),
        };
        match written {
            Ok(()) => Ok(()),
            // The text was truncated.
            Err(fmt::Error) => f.write_str("…"),
        }
    }
}

/// Appends the packet of [`Message::Frame`].
///
/// # Errors
/// The packet would be too large.
pub fn write_frame(seq: u64, bytes: &[u8], transfer: Option<u64>, to: &mut Writer) -> Result<()> {
    Ok(to.packet(3 + usize::from(transfer.is_some()), |to| {
        Value::Int(FRAME).write(to)?;
        Value::Int(seq as i64).write(to)?;
        value::write_bytes(bytes, to);
        transfer.map_or(Ok(()), |transfer| Value::Int(transfer as i64).write(to))
    })?)
}

/// The failure in place of a reply's value that this end can't hold.
fn unread(seq: u64, error: &Error) -> Failure {
    Failure {
        worker: WorkerId::new(0),
        command: seq,
        operation: "reply".into(),
        register: None,
        message: format!("its value can't be received: {error}"),
        causes: Vec::new(),
        aborted: false,
        kind: error.kind(),
        user: None,
    }
}
