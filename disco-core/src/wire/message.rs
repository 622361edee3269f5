//! What goes over a connection between processes beside the commands.
//!
//! ```text
//! worker                                                          controller
//! HELLO   magic, version, token, worker, function names…  ──▶
//!                                    ◀── WELCOME configuration
//! REPLY   command's number, 0, value │ 1, failure… ──▶
//!                                    ◀── FRAME    number, frame (where commands go over the connection)
//! NOTICE  notice ──▶                     ◀── ABORT    epoch, cause
//! PROGRESS  what it is doing ──▶         ◀── SHUTDOWN
//! ASK     number, epoch, call of the store ──▶  ◀── ANSWER   number, value or error
//! SHARE   number, name  (a descriptor goes along) ──▶    ◀── ANSWER   none
//! UNSHARE name ──▶
//! RECEIVE number, name ──▶               ◀── HANDED   number (a descriptor goes along) │ ANSWER error
//! ROOM    frames and bytes taken ──▶
//! BYE     why ──▶                        ◀── BYE      why
//!
//! node (its workers' REPLY, NOTICE, PROGRESS come as FROM worker, …)      controller
//! JOIN    name, function names…  ──▶
//!                                    ◀── ASSIGN   node, workers, configuration
//! READY ──▶                              ◀── FRAME, ABORT, SHUTDOWN, ANSWER
//! FROM    worker, OUTPUT of its process │ LOST why ──▶
//! ASK, ROOM as a worker ──▶
//! ALIVE, each heartbeat ──▶              ◀── ALIVE, each heartbeat
//! LEFT    who did not leave, or BYE ──▶  ◀── BYE
//! ```
//!
//! Each is one packet; a large one travels as several PARTs, between which others may go. The first that a worker sends is
//! HELLO, the first that it gets WELCOME or BYE; those of a node, which has proved before that it knows the session's token,
//! are JOIN and ASSIGN. Either end may close the connection at any time, which means that it is gone; BYE says why.

use std::fmt;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use super::answer::{decode_failure, failure_args};
use super::frame::write;
use super::{Packet, WireError, Writer, action, value};
use crate::activity::{OpRecord, OpState, Progress};
use crate::channel::Reply;
use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::id::WorkerId;
use crate::op::OpKind;
use crate::value::Value;
use crate::worker::WorkerConfig;
use crate::world::World;

/// The version of everything that goes over connections: packets, messages, the ring.
pub const VERSION: i64 = 2;
/// The first word of each connection.
const MAGIC: &str = "disco connection";

/// Characters of a message that are shown.
const LONG: usize = 100;

/// One message.
#[non_exhaustive]
#[derive(Clone, Debug)]
pub enum Message {
    /// A worker introduces itself.
    Hello(Hello),
    /// The controller takes it.
    Welcome(Welcome),
    /// This end closes the connection, and why.
    Bye(String),
    /// The answer to a command.
    Reply {
        /// The command's number.
        seq: u64,
        /// What it is.
        reply: Reply,
    },
    /// A notice, as [`encode_notice`](super::encode_notice) writes it.
    Notice(Arc<[u8]>),
    /// What the worker is doing.
    Progress(Progress),
    /// A frame, as [`Frame::bytes`](crate::Frame::bytes) gives it.
    Frame {
        /// Its number.
        seq: u64,
        /// The packets.
        bytes: Arc<[u8]>,
    },
    /// [`Signal::Abort`](crate::channel::Signal::Abort).
    Abort {
        /// Of which epoch.
        epoch: u64,
        /// Why.
        cause: Arc<str>,
    },
    /// [`Signal::Shutdown`](crate::channel::Signal::Shutdown).
    Shutdown,
    /// What was full has room again.
    Room {
        /// Frames that the worker has taken of those that came over the connection.
        frames: u64,
        /// Their bytes.
        bytes: u64,
    },
    /// A call of the store.
    Ask {
        /// To tell answers apart.
        id: u64,
        /// The worker's epoch.
        epoch: u64,
        /// The call.
        call: StoreCall,
    },
    /// A descriptor that was wanted comes along.
    Handed {
        /// The question's.
        id: u64,
    },
    /// What a call of the store returns, or why there is no descriptor.
    Answer {
        /// The question's.
        id: u64,
        /// Its result.
        result: Result<Value>,
    },
    /// A descriptor comes along, to be known by this name; answered once it is.
    Share {
        /// To tell answers apart.
        id: u64,
        /// Its name.
        name: u64,
    },
    /// A descriptor is wanted no more.
    Unshare(u64),
    /// A descriptor is wanted.
    Receive {
        /// To tell answers apart.
        id: u64,
        /// Its name.
        name: u64,
    },
    /// A piece of a packet that is too large to hold up others.
    Part {
        /// Bytes of the packet that are still to come.
        left: u64,
        /// The piece.
        bytes: Arc<[u8]>,
    },
    /// A node introduces itself.
    Join(Join),
    /// The controller takes it, and this is its part.
    Assign(Assignment),
    /// All workers of a node have started.
    Ready,
    /// This end is there.
    Alive,
    /// What a worker of a node says.
    From {
        /// Which worker.
        worker: WorkerId,
        /// What it says.
        message: Box<Message>,
    },
    /// A line of a worker's output.
    Output {
        /// Of its standard error, not its standard output.
        is_err: bool,
        /// Without its end.
        line: Arc<[u8]>,
    },
    /// A worker is gone, and why.
    Lost(String),
    /// The workers of a node have left, but for those named here.
    Left(String),
}

/// Who a node is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Join {
    /// The name of its machine.
    pub name: String,
    /// The names of its worker functions, sorted.
    pub functions: Vec<String>,
}

/// What a node has to know.
#[derive(Clone, Debug)]
pub struct Assignment {
    /// Which node it is.
    pub node: u32,
    /// Its workers.
    pub workers: Range<WorkerId>,
    /// They are processes, not threads of the node's.
    pub processes: bool,
    /// How they behave.
    pub config: WorkerConfig,
    /// How often each end says something.
    pub heartbeat: Duration,
    /// How long each end may be silent.
    pub silence: Duration,
    /// How long the node's workers may take to start.
    pub start: Duration,
}

/// Who a worker is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hello {
    /// What the controller gave to whom it started.
    pub token: Arc<[u8]>,
    /// Which worker.
    pub worker: WorkerId,
    /// The names of its worker functions, sorted.
    pub functions: Vec<String>,
}

/// What a worker has to know.
#[derive(Clone, Copy, Debug)]
pub struct Welcome {
    /// How it behaves.
    pub config: WorkerConfig,
    /// Commands come over a ring, whose descriptor comes along; else over the connection.
    pub ring: Option<RingPlace>,
    /// How often it says what it is doing.
    pub heartbeat: Duration,
}

/// A reader's place in a ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RingPlace {
    /// Which reader.
    pub reader: usize,
    /// How many there are.
    pub readers: usize,
    /// Words of the ring.
    pub capacity: usize,
}

/// A call of the [`Store`](crate::Store).
#[non_exhaustive]
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StoreCall {
    /// `set(key, value)`
    Set(Arc<str>, Arc<[u8]>),
    /// `get(key)`
    Get(Arc<str>),
    /// `wait(key, deadline)`; no answer comes after the deadline.
    Wait(Arc<str>, Duration),
    /// `add(key, amount)`
    Add(Arc<str>, i64),
    /// `compare_and_set(key, expected, new)`
    CompareAndSet(Arc<str>, Option<Arc<[u8]>>, Arc<[u8]>),
    /// `delete(key)`
    Delete(Arc<str>),
}

impl Message {
    /// The packet.
    ///
    /// # Errors
    /// It would be too large.
    pub fn encode(&self) -> Result<Vec<u8>> {
        let (action, args) = self.parts();
        let mut to = Writer::default();
        write(&mut to, &[Value::Int(action)], &args)?;
        Ok(to.into_bytes())
    }

    /// Its number, and what follows.
    fn parts(&self) -> (i64, Vec<Value>) {
        let int = |number: u64| Value::Int(number as i64);
        match self {
            Message::Hello(hello) => (action::HELLO, hello.args()),
            Message::Welcome(welcome) => (action::WELCOME, welcome.args()),
            Message::Bye(why) => (action::BYE, vec![why.as_str().into()]),
            Message::Reply { seq, reply } => (action::REPLY, [vec![int(*seq)], reply_args(reply)].concat()),
            Message::Notice(packet) => (action::NOTICE, vec![Value::Bytes(packet.clone())]),
            Message::Progress(progress) => (action::PROGRESS, progress_args(progress)),
            Message::Frame { seq, bytes } => (action::FRAME, vec![int(*seq), Value::Bytes(bytes.clone())]),
            Message::Abort { epoch, cause } => (action::ABORT, vec![int(*epoch), Value::Str(cause.clone())]),
            Message::Room { frames, bytes } => (action::ROOM, vec![int(*frames), int(*bytes)]),
            // As the command.
            Message::Shutdown => (action::SHUTDOWN, vec![int(0)]),
            Message::Ask { id, epoch, call } => (action::ASK, [vec![int(*id), int(*epoch)], call.args()].concat()),
            Message::Handed { id } => (action::HANDED, vec![int(*id)]),
            Message::Answer { id, result } => (action::ANSWER, [vec![int(*id)], result_args(result)].concat()),
            Message::Share { id, name } => (action::SHARE, vec![int(*id), int(*name)]),
            Message::Unshare(name) => (action::UNSHARE, vec![int(*name)]),
            Message::Receive { id, name } => (action::RECEIVE, vec![int(*id), int(*name)]),
            Message::Part { left, bytes } => (action::PART, vec![int(*left), Value::Bytes(bytes.clone())]),
            Message::Join(join) => (action::JOIN, join.args()),
            Message::Assign(assignment) => (action::ASSIGN, assignment.args()),
            Message::Ready => (action::READY, Vec::new()),
            Message::Alive => (action::ALIVE, Vec::new()),
            Message::From { worker, message } => {
                let (action, args) = message.parts();
                (action::FROM, [vec![Value::Int(worker.wire()), Value::Int(action)], args].concat())
            }
            Message::Output { is_err, line } => {
                (action::OUTPUT, vec![Value::Bool(*is_err), Value::Bytes(line.clone())])
            }
            Message::Lost(why) => (action::LOST, vec![why.as_str().into()]),
            Message::Left(stuck) => (action::LEFT, vec![stuck.as_str().into()]),
        }
    }

    /// The message in a packet.
    ///
    /// # Errors
    /// Anything that [`WireError`] tells.
    pub fn decode(mut packet: Packet<'_>) -> Result<Self, WireError> {
        match packet.int()? {
            action::FROM => {
                let (worker, action) = (packet.id()?, packet.int()?);
                let message = Box::new(Self::decode_rest(action, packet)?);
                Ok(Message::From { worker, message })
            }
            action => Self::decode_rest(action, packet),
        }
    }

    /// The message of that number, of which the rest of the packet is the content.
    fn decode_rest(action: i64, mut packet: Packet<'_>) -> Result<Self, WireError> {
        let message = match action {
            action::HELLO => return Ok(Message::Hello(Hello::decode(packet)?)),
            action::WELCOME => Message::Welcome(Welcome::decode(&mut packet)?),
            action::BYE => Message::Bye(packet.string()?.to_string()),
            action::REPLY => return Ok(Message::Reply { seq: packet.number()?, reply: decode_reply(packet)? }),
            action::NOTICE => Message::Notice(packet.bytes()?),
            action::PROGRESS => return Ok(Message::Progress(decode_progress(packet)?)),
            action::FRAME => Message::Frame { seq: packet.number()?, bytes: packet.bytes()? },
            action::ABORT => Message::Abort { epoch: packet.int()? as u64, cause: packet.string()? },
            action::ROOM => Message::Room { frames: packet.number()?, bytes: packet.number()? },
            action::SHUTDOWN => {
                packet.int()?;
                Message::Shutdown
            }
            action::ASK => {
                Message::Ask { id: packet.number()?, epoch: packet.number()?, call: StoreCall::decode(&mut packet)? }
            }
            action::HANDED => Message::Handed { id: packet.number()? },
            action::ANSWER => Message::Answer { id: packet.number()?, result: decode_result(&mut packet)? },
            action::SHARE => Message::Share { id: packet.number()?, name: packet.number()? },
            action::UNSHARE => Message::Unshare(packet.number()?),
            action::RECEIVE => Message::Receive { id: packet.number()?, name: packet.number()? },
            action::PART => Message::Part { left: packet.number()?, bytes: packet.bytes()? },
            action::JOIN => return Ok(Message::Join(Join::decode(packet)?)),
            action::ASSIGN => Message::Assign(Assignment::decode(&mut packet)?),
            action::READY => Message::Ready,
            action::ALIVE => Message::Alive,
            action::OUTPUT => Message::Output { is_err: packet.bool()?, line: packet.bytes()? },
            action::LOST => Message::Lost(packet.string()?.to_string()),
            action::LEFT => Message::Left(packet.string()?.to_string()),
            number => return Err(WireError::Unknown { what: "message", number }),
        };
        packet.end()?;
        Ok(message)
    }
}

/// What it is, cut off where it is long.
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

        match fmt::write(&mut Short(f, LONG), format_args!("{self:?}")) {
            Ok(()) => Ok(()),
            // It was cut off.
            Err(fmt::Error) => f.write_str("…"),
        }
    }
}

/// Appends the packet of [`Message::Frame`].
///
/// # Errors
/// It would be too large.
pub fn write_frame(seq: u64, bytes: &[u8], to: &mut Writer) -> Result<()> {
    Ok(to.packet(3, |to| {
        Value::Int(action::FRAME).write(to)?;
        Value::Int(seq as i64).write(to)?;
        value::write_bytes(bytes, to);
        Ok(())
    })?)
}

impl Hello {
    fn args(&self) -> Vec<Value> {
        let head =
            [MAGIC.into(), Value::Int(VERSION), Value::Bytes(self.token.clone()), Value::Int(self.worker.wire())];
        head.into_iter().chain(self.functions.iter().map(|name| name.as_str().into())).collect()
    }

    fn decode(mut packet: Packet<'_>) -> Result<Self, WireError> {
        if &*packet.string()? != MAGIC {
            return Err(WireError::Expected("the first word of a connection of Disco"));
        }
        let version = packet.int()?;
        if version != VERSION {
            return Err(WireError::Version { theirs: version, ours: VERSION });
        }
        Ok(Self { token: packet.bytes()?, worker: packet.id()?, functions: decode_names(packet)? })
    }
}

impl Join {
    fn args(&self) -> Vec<Value> {
        let names = self.functions.iter().map(String::as_str);
        std::iter::once(self.name.as_str()).chain(names).map(Value::from).collect()
    }

    fn decode(mut packet: Packet<'_>) -> Result<Self, WireError> {
        Ok(Self { name: packet.string()?.to_string(), functions: decode_names(packet)? })
    }
}

fn decode_names(packet: Packet<'_>) -> Result<Vec<String>, WireError> {
    let names = packet.rest()?.into_iter().map(|name| match name {
        Value::Str(name) => Ok(name.to_string()),
        _ => Err(WireError::Expected("a function's name")),
    });
    names.collect()
}

impl Welcome {
    fn args(&self) -> Vec<Value> {
        let ring = match self.ring {
            None => [0; 3],
            Some(RingPlace { reader, readers, capacity }) => [reader, readers, capacity],
        };
        let mut args = config_args(self.config);
        args.push(duration(self.heartbeat));
        args.extend(ring.map(|number| Value::Int(number as i64)));
        args
    }

    fn decode(packet: &mut Packet<'_>) -> Result<Self, WireError> {
        let config = decode_config(packet)?;
        let heartbeat = Duration::from_nanos(packet.number()?);
        let [reader, readers, capacity] = [packet.id()?, packet.id()?, packet.id()?].map(|number: u32| number as usize);
        let ring = (readers > 0).then_some(RingPlace { reader, readers, capacity });
        Ok(Self { config, ring, heartbeat })
    }
}

impl Assignment {
    fn args(&self) -> Vec<Value> {
        let id = |worker: WorkerId| Value::Int(worker.wire());
        let mut args = config_args(self.config);
        args.extend([Value::Int(self.node.into()), id(self.workers.start), id(self.workers.end)]);
        args.push(Value::Bool(self.processes));
        args.extend([self.heartbeat, self.silence, self.start].map(duration));
        args
    }

    fn decode(packet: &mut Packet<'_>) -> Result<Self, WireError> {
        Ok(Self {
            config: decode_config(packet)?,
            node: packet.id()?,
            workers: packet.id()?..packet.id()?,
            processes: packet.bool()?,
            heartbeat: Duration::from_nanos(packet.number()?),
            silence: Duration::from_nanos(packet.number()?),
            start: Duration::from_nanos(packet.number()?),
        })
    }
}

fn config_args(config: WorkerConfig) -> Vec<Value> {
    let WorkerConfig { world, collective_deadline, connect_deadline, check } = config;
    let mut args: Vec<Value> =
        [world.size(), world.groups(), world.nodes()].map(|number| Value::Int(number as i64)).into();
    args.extend([duration(collective_deadline), duration(connect_deadline), Value::Bool(check)]);
    args
}

fn decode_config(packet: &mut Packet<'_>) -> Result<WorkerConfig, WireError> {
    let [workers, groups, nodes] = [packet.id()?, packet.id()?, packet.id()?].map(|number: u32| number as usize);
    let world = World::new(workers, groups).and_then(|world| world.on_nodes(nodes));
    let mut config = WorkerConfig::new(world.map_err(|_| WireError::Expected("a world"))?);
    config.collective_deadline = Duration::from_nanos(packet.number()?);
    config.connect_deadline = Duration::from_nanos(packet.number()?);
    config.check = packet.bool()?;
    Ok(config)
}

impl StoreCall {
    fn args(&self) -> Vec<Value> {
        let (key, bytes) = (|key: &Arc<str>| Value::Str(key.clone()), |bytes: &Arc<[u8]>| Value::Bytes(bytes.clone()));
        match self {
            StoreCall::Set(k, value) => vec![Value::Int(0), key(k), bytes(value)],
            StoreCall::Get(k) => vec![Value::Int(1), key(k)],
            StoreCall::Wait(k, deadline) => vec![Value::Int(2), key(k), duration(*deadline)],
            StoreCall::Add(k, amount) => vec![Value::Int(3), key(k), Value::Int(*amount)],
            StoreCall::CompareAndSet(k, expected, new) => {
                vec![Value::Int(4), key(k), expected.as_ref().map_or(Value::None, bytes), bytes(new)]
            }
            StoreCall::Delete(k) => vec![Value::Int(5), key(k)],
        }
    }

    fn decode(packet: &mut Packet<'_>) -> Result<Self, WireError> {
        let (number, key) = (packet.int()?, packet.string()?);
        match number {
            0 => Ok(StoreCall::Set(key, packet.bytes()?)),
            1 => Ok(StoreCall::Get(key)),
            2 => Ok(StoreCall::Wait(key, Duration::from_nanos(packet.number()?))),
            3 => Ok(StoreCall::Add(key, packet.int()?)),
            4 => {
                let expected = match packet.value()? {
                    Value::None => None,
                    Value::Bytes(bytes) => Some(bytes),
                    _ => return Err(WireError::Expected("bytes or none")),
                };
                Ok(StoreCall::CompareAndSet(key, expected, packet.bytes()?))
            }
            5 => Ok(StoreCall::Delete(key)),
            number => Err(WireError::Unknown { what: "call of the store", number }),
        }
    }
}

/// Only what a store or a link says of itself crosses; anything else does as its text.
fn result_args(result: &Result<Value>) -> Vec<Value> {
    match result {
        Ok(value) => vec![Value::Int(0), value.clone()],
        Err(Error::Aborted { cause }) => vec![Value::Int(1), Value::Str(cause.clone())],
        Err(other) => vec![Value::Int(2), other.to_string().into()],
    }
}

fn decode_result(packet: &mut Packet<'_>) -> Result<Result<Value>, WireError> {
    match packet.int()? {
        0 => Ok(Ok(packet.value()?)),
        1 => Ok(Err(Error::Aborted { cause: packet.string()? })),
        2 => Ok(Err(Error::invalid(packet.string()?.to_string()))),
        number => Err(WireError::Unknown { what: "result", number }),
    }
}

fn reply_args(reply: &Reply) -> Vec<Value> {
    match reply {
        Ok(value) => vec![Value::Int(0), value.clone()],
        Err(failure) => [vec![Value::Int(1)], failure_args(failure)].concat(),
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

/// `received, finished, function or none`, then for each operation `number, kind, dtype or none, count, state`.
fn progress_args(progress: &Progress) -> Vec<Value> {
    let inside = progress.inside.as_ref().map_or(Value::None, |name| Value::Str(name.clone()));
    let mut args = vec![Value::Int(progress.received as i64), Value::Int(progress.finished as i64), inside];
    for op in &progress.ops {
        args.push(Value::Int(op.number.into()));
        args.push(Value::Int(op.kind as i64));
        args.push(op.dtype.map_or(Value::None, Value::DType));
        args.push(Value::Int(op.count as i64));
        args.push(Value::Int(op.state as i64));
    }
    args
}

fn decode_progress(mut packet: Packet<'_>) -> Result<Progress, WireError> {
    let (received, finished) = (packet.number()?, packet.number()?);
    let inside = match packet.value()? {
        Value::None => None,
        Value::Str(name) => Some(name),
        _ => return Err(WireError::Expected("a function's name or none")),
    };
    let args = packet.rest()?;
    let (ops, rest) = args.as_chunks::<5>();
    if !rest.is_empty() {
        return Err(WireError::Expected("whole records of operations"));
    }
    let ops = ops.iter().map(decode_op).collect::<Result<_, _>>()?;
    Ok(Progress { received, finished, inside, ops })
}

fn decode_op(args: &[Value; 5]) -> Result<OpRecord, WireError> {
    let [Value::Int(number), Value::Int(kind), dtype, Value::Int(count), Value::Int(state)] = args else {
        return Err(WireError::Expected("the record of an operation"));
    };
    let unknown = |what, number: i64| WireError::Unknown { what, number };
    let dtype: Option<DType> = match dtype {
        Value::None => None,
        Value::DType(dtype) => Some(*dtype),
        _ => return Err(WireError::Expected("a dtype or none")),
    };
    let index = |number: i64| usize::try_from(number).unwrap_or(usize::MAX);
    Ok(OpRecord {
        number: u32::try_from(*number).map_err(|_| unknown("operation", *number))?,
        kind: *OpKind::ALL.get(index(*kind)).ok_or(unknown("kind of operation", *kind))?,
        dtype,
        count: *count as u64,
        state: *OpState::ALL.get(index(*state)).ok_or(unknown("state of an operation", *state))?,
    })
}

/// In nanoseconds; what does not fit is for ever.
fn duration(duration: Duration) -> Value {
    Value::Int(i64::try_from(duration.as_nanos()).unwrap_or(i64::MAX))
}
