//! The handshake of a connection: the identity of the peer, and the role that it is given.

use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use super::value::duration;
use super::{Packet, VERSION, WireError};
use crate::activity::RecorderConfig;
use crate::config::WorkerConfig;
use crate::id::WorkerId;
use crate::value::Value;
use crate::worker_range::WorkerRange;
use crate::world::World;

/// The first argument on each connection.
const MAGIC: &str = "disco connection";

/// Identity of a worker.
#[allow(clippy::exhaustive_structs, reason = "a message of the protocol: another field is another version")]
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hello {
    /// The secret that the controller gives to the processes that it starts.
    pub token: Arc<[u8]>,
    /// The worker's id.
    pub worker: WorkerId,
    /// The id of its thread, as Linux numbers threads.
    pub thread: u32,
    /// The names of its worker functions, sorted.
    pub functions: Vec<String>,
}

/// The assignment of a worker.
#[allow(clippy::exhaustive_structs, reason = "a message of the protocol: another field is another version")]
#[derive(Clone, Copy, Debug)]
pub struct Welcome {
    /// Configuration of the worker.
    pub config: WorkerConfig,
    /// The worker's place in the ring of commands, whose descriptor is sent along; none if commands use the connection.
    pub ring: Option<RingPlace>,
    /// Interval of its progress reports.
    pub heartbeat: Duration,
}

/// A reader's place in a ring.
#[allow(clippy::exhaustive_structs, reason = "a message of the protocol: another field is another version")]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RingPlace {
    /// Index of the reader.
    pub reader: usize,
    /// Number of readers.
    pub readers: usize,
    /// Size of the ring in words.
    pub capacity: usize,
}

/// Identity of a node.
#[allow(clippy::exhaustive_structs, reason = "a message of the protocol: another field is another version")]
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Join {
    /// The name of the node's machine.
    pub name: String,
    /// The rack, or another name of the part of the network that the machine is in; empty if it is unknown.
    pub rack: String,
    /// The node stands by until it is to take the place of a lost one.
    pub is_spare: bool,
    /// The names of its worker functions, sorted.
    pub functions: Vec<String>,
}

/// The assignment of a node.
#[allow(clippy::exhaustive_structs, reason = "a message of the protocol: another field is another version")]
#[derive(Clone, Debug)]
pub struct Assignment {
    /// The number of the node.
    pub node: u32,
    /// The workers of the node, and those of the nodes behind it, which follow.
    pub workers: WorkerRange,
    /// The nodes behind this one, for which it relays: for each, in the order of their workers, the number of nodes in its
    /// subtree, itself included.
    pub behind: Arc<[u32]>,
    /// Whether the workers are processes rather than threads of the node's process.
    pub processes: bool,
    /// Configuration of the workers.
    pub config: WorkerConfig,
    /// Heartbeat interval of each end.
    pub heartbeat: Duration,
    /// Time without bytes after which an end counts as lost.
    pub silence: Duration,
    /// Time limit for the start of the node's workers.
    pub start: Duration,
}

impl Hello {
    pub(super) fn args(&self) -> Vec<Value> {
        let numbers = [self.worker.wire(), self.thread.into()].map(Value::Int);
        let head = [MAGIC.into(), Value::Int(VERSION), Value::Bytes(self.token.clone())].into_iter().chain(numbers);
        head.chain(self.functions.iter().map(|name| name.as_str().into())).collect()
    }

    pub(super) fn decode(mut packet: Packet<'_>) -> Result<Self, WireError> {
        if &*packet.string()? != MAGIC {
            return Err(WireError::Expected("the first word of a connection of Disco"));
        }
        let version = packet.int()?;
        if version != VERSION {
            return Err(WireError::Version { theirs: version, ours: VERSION });
        }
        Ok(Self {
            token: packet.bytes()?,
            worker: packet.id()?,
            thread: packet.id()?,
            functions: decode_texts(packet)?,
        })
    }
}

impl Join {
    pub(super) fn args(&self) -> Vec<Value> {
        let names = self.functions.iter().map(String::as_str);
        let head = [self.name.as_str().into(), self.rack.as_str().into(), Value::Bool(self.is_spare)];
        head.into_iter().chain(names.map(Value::from)).collect()
    }

    pub(super) fn decode(mut packet: Packet<'_>) -> Result<Self, WireError> {
        let (name, rack) = (packet.string()?.to_string(), packet.string()?.to_string());
        Ok(Self { name, rack, is_spare: packet.bool()?, functions: decode_texts(packet)? })
    }
}

pub(super) fn texts(texts: &[String]) -> Vec<Value> {
    texts.iter().map(|text| text.as_str().into()).collect()
}

/// The rest of a packet, which has texts only.
pub(super) fn decode_texts(packet: Packet<'_>) -> Result<Vec<String>, WireError> {
    let texts = packet.rest()?.into_iter().map(|text| match text {
        Value::Str(text) => Ok(text.to_string()),
        _ => Err(WireError::Expected("a text")),
    });
    texts.collect()
}

impl Welcome {
    pub(super) fn args(&self) -> Vec<Value> {
        let ring = match self.ring {
            None => [0; 3],
            Some(RingPlace { reader, readers, capacity }) => [reader, readers, capacity],
        };
        let mut args = config_args(self.config);
        args.push(duration(self.heartbeat));
        args.extend(ring.map(|number| Value::Int(number as i64)));
        args
    }

    pub(super) fn decode(packet: &mut Packet<'_>) -> Result<Self, WireError> {
        let config = decode_config(packet)?;
        let heartbeat = packet.duration()?;
        let [reader, readers, capacity] = [packet.id()?, packet.id()?, packet.id()?].map(|number: u32| number as usize);
        let ring = (readers > 0).then_some(RingPlace { reader, readers, capacity });
        Ok(Self { config, ring, heartbeat })
    }
}

impl Assignment {
    pub(super) fn args(&self) -> Vec<Value> {
        let Range { start, end } = self.workers.indices();
        let mut args = config_args(self.config);
        args.extend([Value::Int(self.node.into()), Value::Int(start as i64), Value::Int(end as i64)]);
        args.push(Value::Bool(self.processes));
        let behind: Vec<u8> = self.behind.iter().flat_map(|size| size.to_le_bytes()).collect();
        args.push(Value::Bytes(behind.into()));
        args.extend([self.heartbeat, self.silence, self.start].map(duration));
        args
    }

    pub(super) fn decode(packet: &mut Packet<'_>) -> Result<Self, WireError> {
        Ok(Self {
            config: decode_config(packet)?,
            node: packet.id()?,
            workers: WorkerRange::new(packet.id()?..packet.id()?),
            processes: packet.bool()?,
            behind: decode_sizes(&packet.bytes()?)?,
            heartbeat: packet.duration()?,
            silence: packet.duration()?,
            start: packet.duration()?,
        })
    }
}

fn decode_sizes(bytes: &[u8]) -> Result<Arc<[u32]>, WireError> {
    let (sizes, rest) = bytes.as_chunks::<4>();
    match rest {
        [] => Ok(sizes.iter().map(|size| u32::from_le_bytes(*size)).collect()),
        _ => Err(WireError::Expected("sizes of subtrees")),
    }
}

fn config_args(config: WorkerConfig) -> Vec<Value> {
    let WorkerConfig { world, collective_deadline, connect_deadline, value_limit, check, recorder } = config;
    let mut args: Vec<Value> =
        [world.size(), world.groups(), world.nodes()].map(|number| Value::Int(number as i64)).into();
    let value_limit = Value::Int(i64::try_from(value_limit).unwrap_or(i64::MAX));
    args.extend([duration(collective_deadline), duration(connect_deadline), value_limit, Value::Bool(check)]);
    args.extend([Value::Int(recorder.records() as i64), Value::Bool(recorder.has_timeline())]);
    args
}

fn decode_config(packet: &mut Packet<'_>) -> Result<WorkerConfig, WireError> {
    let [workers, groups, nodes] = [packet.id()?, packet.id()?, packet.id()?].map(|number: u32| number as usize);
    let world = World::new(workers, groups).and_then(|world| world.on_nodes(nodes));
    let mut config = WorkerConfig::new(world.map_err(|_| WireError::Expected("a world"))?);
    config.collective_deadline = packet.duration()?;
    config.connect_deadline = packet.duration()?;
    config.value_limit = usize::try_from(packet.number()?).unwrap_or(usize::MAX);
    config.check = packet.bool()?;
    let records = usize::try_from(packet.number()?).unwrap_or(usize::MAX);
    config.recorder = RecorderConfig::new(records, packet.bool()?);
    Ok(config)
}
