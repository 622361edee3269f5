//! The handshake of a connection: the identity of the peer, and the role that it is given.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use super::field::{Field, fields};
use super::{Packet, VERSION, WireError};
use crate::activity::RecorderConfig;
use crate::config::{Uplink, WorkerConfig};
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

/// The magic word, the version, then the fields.
impl Field for Hello {
    fn put(&self, args: &mut Vec<Value>) {
        args.extend([MAGIC.into(), Value::Int(VERSION)]);
        self.token.put(args);
        self.worker.put(args);
        self.thread.put(args);
        self.functions.put(args);
    }

    fn take(packet: &mut Packet<'_>) -> Result<Self, WireError> {
        if &*packet.string()? != MAGIC {
            return Err(WireError::Expected("the first word of a connection of Disco"));
        }
        let version = packet.int()?;
        if version != VERSION {
            return Err(WireError::Version { theirs: version, ours: VERSION });
        }
        Ok(Self {
            token: Field::take(packet)?,
            worker: Field::take(packet)?,
            thread: Field::take(packet)?,
            functions: Field::take(packet)?,
        })
    }
}

fields!(Join { name, rack, is_spare, functions });
fields!(Welcome { config, heartbeat, ring });
fields!(RingPlace { reader, readers, capacity });
fields!(Assignment { config, node, workers, processes, behind, heartbeat, silence, start });
fields!(WorkerConfig { world, collective_deadline, connect_deadline, value_limit, check, recorder, uplink });

/// Four bytes for each size.
impl Field for Arc<[u32]> {
    fn put(&self, args: &mut Vec<Value>) {
        let bytes: Vec<u8> = self.iter().flat_map(|size| size.to_le_bytes()).collect();
        args.push(Value::Bytes(bytes.into()));
    }

    fn take(packet: &mut Packet<'_>) -> Result<Self, WireError> {
        match packet.bytes()?.as_chunks::<4>() {
            (sizes, []) => Ok(sizes.iter().map(|size| u32::from_le_bytes(*size)).collect()),
            _ => Err(WireError::Expected("sizes of subtrees")),
        }
    }
}

impl Field for World {
    fn put(&self, args: &mut Vec<Value>) {
        args.extend([self.size(), self.groups(), self.nodes()].map(|number| Value::Int(number as i64)));
    }

    fn take(packet: &mut Packet<'_>) -> Result<Self, WireError> {
        let [workers, groups, nodes] = [packet.id()?, packet.id()?, packet.id()?].map(|number: u32| number as usize);
        let world = World::new(workers, groups).and_then(|world| world.on_nodes(nodes));
        world.map_err(|_| WireError::Expected("a world"))
    }
}

impl Field for RecorderConfig {
    fn put(&self, args: &mut Vec<Value>) {
        self.records().put(args);
        self.has_timeline().put(args);
    }

    fn take(packet: &mut Packet<'_>) -> Result<Self, WireError> {
        Ok(RecorderConfig::new(Field::take(packet)?, Field::take(packet)?))
    }
}

/// The text of each address, and whether the connection is encrypted; or none.
impl Field for Option<Uplink> {
    fn put(&self, args: &mut Vec<Value>) {
        self.is_some().put(args);
        if let Some(Uplink { own, upper, is_encrypted }) = self {
            args.extend([own, upper].map(|address| Value::from(&*address.to_string())));
            is_encrypted.put(args);
        }
    }

    fn take(packet: &mut Packet<'_>) -> Result<Self, WireError> {
        if !packet.bool()? {
            return Ok(None);
        }
        let mut address = || packet.string()?.parse::<IpAddr>().map_err(|_| WireError::Expected("an address"));
        let (own, upper) = (address()?, address()?);
        Ok(Some(Uplink { own, upper, is_encrypted: packet.bool()? }))
    }
}
