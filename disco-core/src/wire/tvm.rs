//! The dialect of TVM's Disco: commands and replies that its workers and controllers understand.
//!
//! Packets have the form of the [wire format](super). The differences:
//!
//! - Only commands 0 to 8 exist, and nothing is sent beside a packet.
//! - The object of `DebugSetRegister` or of the reply to `DebugGetFromRemote` is always a debug object, whatever its
//!   size.
//! - Tensors and registered objects can't be arguments of a call.
//! - There is no reply that reports a failure. A controller of TVM that reads one raises an error, and stays usable.
//! - Over sockets, each packet to a node begins with two more arguments, an [`Envelope`].

use super::command::encode_command;
use super::{Packet, WireError, Writer, action, debug, encode_reply};
use crate::codec::CODE_RETURN;
use crate::command::Command;
use crate::error::{Error, Result};
use crate::id::WorkerId;
use crate::signal::Reply;
use crate::value::Value;

/// Encodes a command for workers of TVM.
///
/// # Errors
/// TVM's workers do not understand the command or one of its values; a tensor can't leave the process.
pub fn encode(command: &Command) -> Result<Vec<u8>> {
    check(command)?;
    let mut to = Writer::default();
    match command {
        Command::DebugSet { register, worker, value } => to.packet(4, |to| {
            let head = [action::DEBUG_SET, register.wire(), worker.wire()];
            head.iter().try_for_each(|number| Value::Int(*number).write(to))?;
            debug::write_wrapped(value, to)
        })?,
        other => encode_command(other, &mut to)?,
    }
    Ok(to.into_bytes())
}

/// Checks that TVM's workers understand a command.
///
/// # Errors
/// [`Error::Invalid`] with the name of the operation.
pub fn check(command: &Command) -> Result<()> {
    let refused =
        |what: &str| Err(Error::invalid(format!("{}: TVM's workers do not understand {what}", command.name())));
    match command {
        Command::Shutdown
        | Command::KillReg { .. }
        | Command::GetGlobalFunc { .. }
        | Command::SyncWorker { .. }
        | Command::DebugGet { .. } => Ok(()),
        Command::CallPacked { args, .. } => match args.iter().find_map(refused_argument) {
            None => Ok(()),
            Some(what) => refused(what),
        },
        Command::CallWith { .. } => refused("calls of some workers, with arguments for each, or that return results"),
        Command::DebugSet { value: Value::Object(_), .. } => refused("a registered object"),
        Command::DebugSet { value: Value::Tagged(..), .. } => refused("a tagged value"),
        Command::DebugSet { .. } => Ok(()),
        _ => refused("this command"),
    }
}

fn refused_argument(value: &Value) -> Option<&'static str> {
    match value {
        Value::Tensor(_) => Some("a tensor as an argument of a call; set a register (`set`), and call with its handle"),
        Value::Object(_) => Some("a registered object as an argument of a call"),
        Value::Tagged(..) => Some("a tagged value as an argument of a call"),
        _ => None,
    }
}

/// Encodes the reply to `command` for a controller of TVM.
///
/// # Errors
/// The value can't leave the process.
pub fn encode_tvm_reply(command: &Command, from: WorkerId, reply: &Reply) -> Result<Vec<u8>> {
    let (Ok(value), Command::DebugGet { .. }) = (reply, command) else { return encode_reply(command, from, reply) };
    let mut to = Writer::default();
    to.packet(2, |to| {
        Value::Int(action::DEBUG_GET).write(to)?;
        debug::write_wrapped(value, to)
    })?;
    Ok(to.into_bytes())
}

/// Whether `number` is the first argument of a reply to `command`: its own number, or that of a failure of Disco's own
/// workers.
pub fn is_reply_to(number: i64, command: &Command) -> bool {
    let own = match command {
        Command::SyncWorker { .. } => action::SYNC_WORKER,
        Command::DebugGet { .. } => action::DEBUG_GET,
        Command::DebugSet { .. } => action::DEBUG_SET,
        _ => return false,
    };
    number == own || number == action::FAILED
}

/// The first argument of a packet with this content, if it is an integer.
pub fn first_number(content: &[u8]) -> Option<i64> {
    Packet::read(content).ok()?.int().ok()
}

/// The two arguments before a command on a connection between a controller of TVM and one of its nodes.
#[allow(clippy::exhaustive_structs, reason = "a message of TVM's protocol")]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Envelope {
    /// The task of the node.
    pub action: EnvelopeAction,
    /// The worker; none for all workers.
    pub worker: Option<WorkerId>,
}

/// The action of a node of TVM.
#[allow(clippy::exhaustive_enums, reason = "a message of TVM's protocol")]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EnvelopeAction {
    /// End the session.
    Shutdown,
    /// Pass the command on.
    Send,
    /// Return the next reply of the worker.
    Receive,
}

/// Bytes of an integer argument: its type and its value.
const INT_BYTES: usize = 12;
/// Bytes before the first argument of a packet: its length, the code and the number of arguments.
const HEAD_BYTES: usize = Packet::PREFIX + 8;

impl Envelope {
    /// An envelope for all workers.
    pub const fn to_all(action: EnvelopeAction) -> Self {
        Self { action, worker: None }
    }

    /// An envelope for one worker.
    pub const fn to(action: EnvelopeAction, worker: WorkerId) -> Self {
        Self { action, worker: Some(worker) }
    }

    /// A packet with this envelope before the arguments of `packet`, or alone.
    ///
    /// # Errors
    /// `packet` is not a packet.
    pub fn wrap(self, packet: Option<&[u8]>) -> Result<Vec<u8>, WireError> {
        let (count, rest) = match packet {
            None => (0, &[][..]),
            Some(packet) => {
                let content = packet.get(Packet::PREFIX..).ok_or(WireError::Expected("a packet"))?;
                let count = Packet::read(content)?.left();
                (count, &content[HEAD_BYTES - Packet::PREFIX..])
            }
        };
        let action = match self.action {
            EnvelopeAction::Shutdown => 0,
            EnvelopeAction::Send => 1,
            EnvelopeAction::Receive => 2,
        };
        let mut to = Writer::default();
        to.packet(count + 2, |to| {
            Value::Int(action).write(to)?;
            Value::Int(self.worker.map_or(-1, WorkerId::wire)).write(to)?;
            to.raw(rest);
            Ok(())
        })?;
        Ok(to.into_bytes())
    }

    /// Takes the envelope off a packet with this content. Returns it with the packet of the other arguments, which has
    /// no arguments if the envelope came alone.
    ///
    /// # Errors
    /// The content is not that of a packet with an envelope.
    pub fn unwrap_content(content: &[u8]) -> Result<(Self, Vec<u8>), WireError> {
        let mut packet = Packet::read(content)?;
        let action = match packet.int()? {
            0 => EnvelopeAction::Shutdown,
            1 => EnvelopeAction::Send,
            2 => EnvelopeAction::Receive,
            number => return Err(WireError::Unknown { what: "action of a node", number }),
        };
        let worker = match packet.int()? {
            -1 => None,
            number => {
                let id = u32::try_from(number).map_err(|_| WireError::Unknown { what: "worker", number })?;
                Some(WorkerId::new(id))
            }
        };
        let count = packet.left();
        let rest = packet.unread();
        let mut to = Writer::default();
        to.packet(count, |to| {
            to.raw(rest);
            Ok(())
        })?;
        let rest = to.into_bytes();
        Packet::read(&rest[Packet::PREFIX..])?;
        Ok((Self { action, worker }, rest))
    }
}

/// The first message of a controller of TVM to a node that has connected.
#[allow(clippy::exhaustive_structs, reason = "a message of TVM's protocol")]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Metadata {
    /// Number of nodes.
    pub nodes: u32,
    /// Number of workers on each node.
    pub workers_per_node: u32,
    /// Number of groups.
    pub groups: u32,
    /// This node. Its first worker is `node * workers_per_node`.
    pub node: u32,
}

impl Metadata {
    /// The packet.
    pub fn encode(self) -> Vec<u8> {
        let numbers = [self.nodes, self.workers_per_node, self.groups, self.node];
        let mut to = Writer::default();
        to.u64((8 + numbers.len() * INT_BYTES) as u64);
        to.i32(CODE_RETURN);
        to.i32(numbers.len() as i32);
        for number in numbers {
            to.i32(1);
            to.i64(number.into());
        }
        to.into_bytes()
    }

    /// Decodes the content of the packet.
    ///
    /// # Errors
    /// It has other arguments than four numbers.
    pub fn decode(content: &[u8]) -> Result<Self, WireError> {
        let mut packet = Packet::read(content)?;
        let metadata =
            Self { nodes: packet.id()?, workers_per_node: packet.id()?, groups: packet.id()?, node: packet.id()? };
        packet.end().map(|()| metadata)
    }
}
