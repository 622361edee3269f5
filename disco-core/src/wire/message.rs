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

use super::answer::{decode_failure, failure_args};
use super::command::write;
use super::introduction::{Assignment, Hello, Join, Welcome, decode_texts, texts};
use super::{Packet, StoreCall, WireError, Writer, action, loss, progress, question, snapshot, value};
use crate::activity::Progress;
use crate::error::{Error, Failure, LossCause, Result};
use crate::id::WorkerId;
use crate::shared_memory::Snapshot;
use crate::signal::Reply;
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
    /// [`Signal::Abort`](crate::channel::Signal::Abort).
    Abort {
        /// The epoch to abort.
        epoch: u64,
        /// The cause of the abort.
        cause: Arc<str>,
    },
    /// [`Signal::Cancel`](crate::channel::Signal::Cancel).
    Cancel {
        /// The number of the command that calls.
        command: u64,
        /// The cause.
        cause: Arc<str>,
    },
    /// [`Signal::Settle`](crate::channel::Signal::Settle).
    Settle {
        /// The number of the cancelled command.
        command: u64,
        /// The cause with which communicators are broken.
        breaks: Option<Arc<str>>,
    },
    /// [`Signal::Taken`](crate::channel::Signal::Taken).
    Taken {
        /// The place of the worker.
        worker: WorkerId,
        /// The number of the command that calls.
        command: u64,
        /// The number of results that were taken so far.
        count: u64,
    },
    /// [`Signal::Shutdown`](crate::channel::Signal::Shutdown).
    Shutdown,
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
    /// [`Signal::Collect`](crate::channel::Signal::Collect).
    Collect {
        /// Number of records of each worker.
        last: usize,
    },
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
        let (action, args) = self.parts();
        let mut to = Writer::default();
        write(&mut to, &[Value::Int(action)], &args)?;
        Ok(to.into_bytes())
    }

    /// Encodes a reply whose large tensor is in shared memory. None if the reply has no large tensor, or shared memory is
    /// exhausted.
    pub fn encode_beside(seq: u64, reply: &Reply) -> Option<Beside> {
        let snapshot = snapshot(reply.as_ref().ok())?;
        let first = Message::Beside.encode().ok()?;
        let (action, args) = Message::Reply { seq, reply: reply.clone() }.parts();
        let mut to = Writer::with_memory_beside();
        write(&mut to, &[Value::Int(action)], &args).ok()?;
        Some(Beside { first, snapshot, packet: to.into_bytes() })
    }

    /// The number of the message type, and the arguments that follow it.
    fn parts(&self) -> (i64, Vec<Value>) {
        let int = |number: u64| Value::Int(number as i64);
        let copy = |bytes: &Arc<[u8]>| Value::Bytes(bytes.clone());
        match self {
            Message::Hello(hello) => (action::HELLO, hello.args()),
            Message::Welcome(welcome) => (action::WELCOME, welcome.args()),
            Message::Bye(why) => (action::BYE, vec![why.as_str().into()]),
            Message::Reply { seq, reply } => (action::REPLY, [vec![int(*seq)], reply_args(reply)].concat()),
            Message::Unread { seq, failure } => {
                (action::REPLY, [vec![int(*seq)], reply_args(&Err(failure.clone()))].concat())
            }
            Message::Notice(packet) => (action::NOTICE, vec![copy(packet)]),
            Message::Progress(progress) => (action::PROGRESS, progress::args(progress)),
            Message::Frame { seq, bytes, transfer } => {
                (action::FRAME, [int(*seq), copy(bytes)].into_iter().chain(transfer.map(int)).collect())
            }
            Message::Ahead { transfer, left, bytes } => (action::AHEAD, vec![int(*transfer), int(*left), copy(bytes)]),
            Message::Withdraw(transfer) => (action::WITHDRAW, vec![int(*transfer)]),
            Message::Abort { epoch, cause } => (action::ABORT, vec![int(*epoch), Value::Str(cause.clone())]),
            Message::Cancel { command, cause } => (action::CANCEL, vec![int(*command), Value::Str(cause.clone())]),
            Message::Settle { command, breaks } => {
                (action::SETTLE, vec![int(*command), breaks.clone().map_or(Value::None, Value::Str)])
            }
            Message::Taken { worker, command, count } => {
                (action::TAKEN, vec![Value::Int(worker.wire()), int(*command), int(*count)])
            }
            Message::Credit { frames, bytes } => (action::CREDIT, vec![int(*frames), int(*bytes)]),
            // Encoded like the command.
            Message::Shutdown => (action::SHUTDOWN, vec![int(0)]),
            Message::StoreRequest { id, epoch, call } => {
                (action::STORE_REQUEST, [vec![int(*id), int(*epoch)], call.args()].concat())
            }
            Message::Descriptor { id } => (action::DESCRIPTOR, vec![int(*id)]),
            Message::Answer { id, result } => {
                (action::ANSWER, [vec![int(*id)], question::result_args(result)].concat())
            }
            Message::Share { id, name } => (action::SHARE, vec![int(*id), int(*name)]),
            Message::Unshare(name) => (action::UNSHARE, vec![int(*name)]),
            Message::Receive { id, name } => (action::RECEIVE, vec![int(*id), int(*name)]),
            Message::Part { left, bytes } => (action::PART, vec![int(*left), copy(bytes)]),
            Message::Beside => (action::BESIDE, Vec::new()),
            Message::Join(join) => (action::JOIN, join.args()),
            Message::Assign(assignment) => (action::ASSIGN, assignment.args()),
            Message::Ready => (action::READY, Vec::new()),
            Message::Alive(Times { sent, echo, held }) => (action::ALIVE, vec![int(*sent), int(*echo), int(*held)]),
            Message::From { workers, message } => {
                let ((action, args), count) = (message.parts(), workers.len() as u64);
                let head = vec![Value::Int(workers.first().wire()), int(count), Value::Int(action)];
                (action::FROM, [head, args].concat())
            }
            Message::Relay { everywhere } => (action::RELAY, vec![Value::Bool(*everywhere)]),
            Message::Listens(addresses) => (action::LISTENS, texts(addresses)),
            Message::Redirect { node, addresses, start } => {
                let head = vec![Value::Int((*node).into()), value::duration(*start)];
                (action::REDIRECT, [head, texts(addresses)].concat())
            }
            Message::Output { is_err, line } => (action::OUTPUT, vec![Value::Bool(*is_err), copy(line)]),
            Message::Lost { cause, whole } => (action::LOST, [loss::args(cause), vec![Value::Bool(*whole)]].concat()),
            Message::Left(stuck) => (action::LEFT, vec![stuck.as_str().into()]),
            Message::Late => (action::LATE, Vec::new()),
            Message::AskStatus => (action::ASK_STATUS, Vec::new()),
            Message::Collect { last } => (action::COLLECT, vec![Value::Int(i64::try_from(*last).unwrap_or(i64::MAX))]),
            Message::Recording(bytes) => (action::RECORDING, vec![copy(bytes)]),
            Message::Status(status) => (action::STATUS, vec![Value::Bytes(json(status).into())]),
        }
    }

    /// Decodes a message.
    ///
    /// # Errors
    /// The packet is not a valid message.
    pub fn decode(mut packet: Packet<'_>) -> Result<Self, WireError> {
        match packet.int()? {
            action::FROM => {
                let (first, count): (u32, u32) = (packet.id()?, packet.id()?);
                let end = first.checked_add(count).ok_or(WireError::Expected("a range of workers"))?;
                let action = packet.int()?;
                let message = Box::new(Self::decode_rest(action, packet)?);
                Ok(Message::From { workers: WorkerRange::new(first..end), message })
            }
            action => Self::decode_rest(action, packet),
        }
    }

    /// Decodes the message of type `action` from the rest of its packet.
    fn decode_rest(action: i64, mut packet: Packet<'_>) -> Result<Self, WireError> {
        let message = match action {
            action::HELLO => return Ok(Message::Hello(Hello::decode(packet)?)),
            action::WELCOME => Message::Welcome(Welcome::decode(&mut packet)?),
            action::BYE => Message::Bye(packet.string()?.to_string()),
            action::REPLY => {
                let seq = packet.number()?;
                return match decode_reply(packet) {
                    Err(error @ WireError::NoMemory { .. }) => {
                        Ok(Message::Unread { seq, failure: unread(seq, &error.into()).into() })
                    }
                    reply => Ok(Message::Reply { seq, reply: reply? }),
                };
            }
            action::NOTICE => Message::Notice(packet.bytes()?),
            action::PROGRESS => return Ok(Message::Progress(progress::decode(packet)?)),
            action::FRAME => {
                let (seq, bytes) = (packet.number()?, packet.bytes()?);
                let transfer = if packet.left() > 0 { Some(packet.number()?) } else { None };
                Message::Frame { seq, bytes, transfer }
            }
            action::AHEAD => {
                Message::Ahead { transfer: packet.number()?, left: packet.number()?, bytes: packet.bytes()? }
            }
            action::WITHDRAW => Message::Withdraw(packet.number()?),
            action::ABORT => Message::Abort { epoch: packet.int()? as u64, cause: packet.string()? },
            action::CANCEL => Message::Cancel { command: packet.number()?, cause: packet.string()? },
            action::SETTLE => {
                let command = packet.number()?;
                let breaks = match packet.value()? {
                    Value::None => None,
                    Value::Str(why) => Some(why),
                    _ => return Err(WireError::Expected("a cause or none")),
                };
                Message::Settle { command, breaks }
            }
            action::TAKEN => {
                Message::Taken { worker: packet.id()?, command: packet.number()?, count: packet.number()? }
            }
            action::CREDIT => Message::Credit { frames: packet.number()?, bytes: packet.number()? },
            action::SHUTDOWN => {
                packet.int()?;
                Message::Shutdown
            }
            action::STORE_REQUEST => Message::StoreRequest {
                id: packet.number()?,
                epoch: packet.number()?,
                call: StoreCall::decode(&mut packet)?,
            },
            action::DESCRIPTOR => Message::Descriptor { id: packet.number()? },
            action::ANSWER => Message::Answer { id: packet.number()?, result: question::decode_result(&mut packet)? },
            action::SHARE => Message::Share { id: packet.number()?, name: packet.number()? },
            action::UNSHARE => Message::Unshare(packet.number()?),
            action::RECEIVE => Message::Receive { id: packet.number()?, name: packet.number()? },
            action::PART => Message::Part { left: packet.number()?, bytes: packet.bytes()? },
            action::JOIN => return Ok(Message::Join(Join::decode(packet)?)),
            action::ASSIGN => Message::Assign(Assignment::decode(&mut packet)?),
            action::BESIDE => Message::Beside,
            action::READY => Message::Ready,
            action::ALIVE => Message::Alive(Times::decode(&mut packet)?),
            action::RELAY => Message::Relay { everywhere: packet.bool()? },
            action::LISTENS => return Ok(Message::Listens(decode_texts(packet)?)),
            action::REDIRECT => {
                let (node, start) = (packet.id()?, packet.duration()?);
                return Ok(Message::Redirect { node, addresses: decode_texts(packet)?, start });
            }
            action::OUTPUT => Message::Output { is_err: packet.bool()?, line: packet.bytes()? },
            action::LOST => Message::Lost { cause: loss::decode(&mut packet)?, whole: packet.bool()? },
            action::LEFT => Message::Left(packet.string()?.to_string()),
            action::LATE => Message::Late,
            action::ASK_STATUS => Message::AskStatus,
            action::COLLECT => Message::Collect { last: packet.number()? as usize },
            action::RECORDING => Message::Recording(packet.bytes()?),
            action::STATUS => Message::Status(decode_status(&packet.bytes()?)?),
            number => return Err(WireError::Unknown { what: "message", number }),
        };
        packet.end()?;
        Ok(message)
    }
}

impl Times {
    fn decode(packet: &mut Packet<'_>) -> Result<Self, WireError> {
        Ok(Self { sent: packet.number()?, echo: packet.number()?, held: packet.number()? })
    }
}

fn decode_status(bytes: &[u8]) -> Result<Box<Status>, WireError> {
    serde_json::from_slice(bytes).map_err(|_| WireError::Expected("the status of a session"))
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

        match fmt::write(&mut Short(f, MAX_SHOWN_CHARS), format_args!("{self:?}")) {
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
        Value::Int(action::FRAME).write(to)?;
        Value::Int(seq as i64).write(to)?;
        value::write_bytes(bytes, to);
        transfer.map_or(Ok(()), |transfer| Value::Int(transfer as i64).write(to))
    })?)
}

/// JSON can be made of any status: its keys are strings, and its numbers are finite.
fn json(status: &Status) -> Vec<u8> {
    serde_json::to_vec(status).unwrap_or_default()
}

fn reply_args(reply: &Reply) -> Vec<Value> {
    match reply {
        Ok(value) => vec![Value::Int(0), value.clone()],
        Err(failure) => [vec![Value::Int(1)], failure_args(failure)].concat(),
    }
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

fn decode_reply(mut packet: Packet<'_>) -> Result<Reply, WireError> {
    match packet.int()? {
        0 => {
            let value = packet.value()?;
            packet.end().map(|()| Ok(value))
        }
        1 => Ok(Err(Arc::new(decode_failure(packet)?))),
        number => Err(WireError::Unknown { what: "reply", number }),
    }
}
