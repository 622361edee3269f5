//! Encoding of commands and frames.

use std::ops::Range;

use smallvec::SmallVec;

use super::beside::Beside;
use super::{PACKET_LIMIT, Packet, WireError, Writer, action, debug, value};
use crate::calling::{Calling, Parts};
use crate::command::{Command, Local};
use crate::error::Result;
use crate::id::{RegisterId, WorkerId};
use crate::members::Members;
use crate::value::Value;
use crate::worker_range::WorkerRange;
use crate::world::World;

/// Upper bound of the bytes that a message adds to its frame.
const ENVELOPE: u64 = 64;

/// Largest capacity of an encoded frame, in bytes, whose unused end is kept.
const MAX_UNSHRUNK: usize = 512;

/// Freed register ids; up to four are stored inline.
pub(crate) type Freed = SmallVec<[RegisterId; 4]>;

/// Encodes the packets of a frame.
pub(super) fn encode_frame(freed: &[RegisterId], command: &Command, mut to: Writer) -> Result<Vec<u8>> {
    write_frame(freed, command, &mut to)?;
    let mut bytes = to.into_bytes();
    // To shrink the usual small buffer would cost more than its unused end.
    if bytes.capacity() > MAX_UNSHRUNK {
        bytes.shrink_to_fit();
    }
    // The message that carries the frame has to fit too.
    match bytes.len() as u64 {
        bytes if bytes > PACKET_LIMIT - ENVELOPE => {
            Err(WireError::TooLarge { bytes, limit: PACKET_LIMIT - ENVELOPE }.into())
        }
        _ => Ok(bytes),
    }
}

/// Appends the packets of a frame.
pub(super) fn write_frame(freed: &[RegisterId], command: &Command, to: &mut Writer) -> Result<()> {
    if !freed.is_empty() {
        to.packet(1 + freed.len(), |to| {
            value::write_int(action::FREE, to);
            freed.iter().for_each(|id| value::write_int(id.wire(), to));
            Ok(())
        })?;
    }
    Ok(encode_command(command, to)?)
}

pub(super) fn encode_command(command: &Command, to: &mut Writer) -> Result<(), WireError> {
    let int = |action| Value::Int(action);
    let id = |register: &RegisterId| Value::Int(register.wire());
    match command {
        // TVM sends a register here and ignores it.
        Command::Shutdown => write(to, &[int(action::SHUTDOWN), int(0)], &[]),
        Command::KillReg { register } => write(to, &[int(action::KILL_REG), id(register)], &[]),
        Command::GetGlobalFunc { register, name } => {
            let head = [int(action::GET_GLOBAL_FUNC), id(register)];
            to.packet(head.len() + 1, |to| {
                head.iter().try_for_each(|arg| arg.write(to))?;
                value::write_raw_str(name, to);
                Ok(())
            })
        }
        Command::CallPacked { register, function, args } => to.packet(3 + args.len(), |to| {
            [action::CALL_PACKED, register.wire(), function.wire()].iter().for_each(|int| value::write_int(*int, to));
            args.iter().try_for_each(|arg| arg.write(to))
        }),
        Command::CallWith { register, function, args, calling } => {
            let Calling { parts, streams, answers } = &**calling;
            let ends = |part: &Option<Range<u32>>| match part {
                None => Value::None,
                Some(part) => Value::Shape([i64::from(part.start), i64::from(part.end)].into()),
            };
            let parts = parts.as_ref().map_or(Value::None, |parts| Value::Array(parts.iter().map(ends).collect()));
            let answers = answers.map_or(Value::None, |place| int(place.wire()));
            let head = [int(action::CALL_WITH), id(register), id(function), Value::Bool(*streams), answers, parts];
            write(to, &head, args)
        }
        Command::SyncWorker { worker } => write(to, &[int(action::SYNC_WORKER), int(worker.wire())], &[]),
        Command::CopyFromWorker0 { register, .. } => write(to, &[int(action::COPY_FROM_WORKER_0), id(register)], &[]),
        Command::CopyToWorker0 { register, .. } => write(to, &[int(action::COPY_TO_WORKER_0), id(register)], &[]),
        Command::DebugGet { register, worker } => {
            write(to, &[int(action::DEBUG_GET), id(register), int(worker.wire())], &[])
        }
        Command::GetAll { register } => write(to, &[int(action::GET_ALL), id(register)], &[]),
        Command::DebugSet { register, worker, value } => {
            write_debug(to, &[int(action::DEBUG_SET), id(register), int(worker.wire())], value)
        }
        Command::SyncAll => write(to, &[int(action::SYNC_ALL)], &[]),
        Command::Recover { epoch } => write(to, &[int(action::RECOVER), int(*epoch as i64)], &[]),
        Command::Resize { epoch, members } => {
            let world = members.world();
            let places = members.ranges().iter().flat_map(|places| [places.first().index(), places.len()]);
            let numbers = [world.groups(), world.nodes()].into_iter().chain(places);
            let numbers: Vec<Value> = numbers.map(|number| int(number as i64)).collect();
            write(to, &[int(action::RESIZE), int(*epoch as i64)], &numbers)
        }
    }
}

/// Appends a packet with the arguments of both lists.
pub(super) fn write(to: &mut Writer, head: &[Value], tail: &[Value]) -> Result<(), WireError> {
    to.packet(head.len() + tail.len(), |to| head.iter().chain(tail).try_for_each(|arg| arg.write(to)))
}

/// Appends a packet whose last argument is wrapped as in TVM's debug commands.
pub(super) fn write_debug(to: &mut Writer, head: &[Value], last: &Value) -> Result<(), WireError> {
    to.packet(head.len() + 1, |to| {
        head.iter().try_for_each(|arg| arg.write(to))?;
        debug::write(last, to)
    })
}

/// Reads the packets of a frame into `freed`, which is empty, and `command`. The arguments of a call take the place of
/// those of another call.
pub(super) fn read_frame(
    bytes: &[u8],
    beside: Option<Beside>,
    freed: &mut Freed,
    command: &mut Command,
) -> Result<(), WireError> {
    let (mut packet, mut rest) = Packet::split(bytes)?;
    let mut action = packet.int()?;
    if action == action::FREE {
        freed.reserve(packet.left());
        while packet.left() > 0 {
            freed.push(register(&mut packet)?);
        }
        packet.end()?;
        (packet, rest) = Packet::split(rest)?;
        action = packet.int()?;
    }
    if !rest.is_empty() {
        return Err(WireError::Trailing(rest.len()));
    }
    packet = packet.with_beside_of(beside);
    match (action, command) {
        (action::CALL_PACKED, Command::CallPacked { register: result, function, args }) => {
            (*result, *function) = (register(&mut packet)?, register(&mut packet)?);
            args.clear();
            packet.append_rest(args)
        }
        (action, command) => {
            *command = decode_command(action, packet)?;
            Ok(())
        }
    }
}

fn decode_command(action: i64, mut packet: Packet<'_>) -> Result<Command, WireError> {
    let command = match action {
        action::SHUTDOWN => {
            packet.int()?;
            Command::Shutdown
        }
        action::KILL_REG => Command::KillReg { register: register(&mut packet)? },
        action::GET_GLOBAL_FUNC => Command::GetGlobalFunc { register: register(&mut packet)?, name: packet.string()? },
        action::CALL_PACKED => {
            let (register, function) = (register(&mut packet)?, self::register(&mut packet)?);
            return Ok(Command::CallPacked { register, function, args: packet.rest()? });
        }
        action::CALL_WITH => {
            let (register, function) = (register(&mut packet)?, self::register(&mut packet)?);
            let streams = packet.bool()?;
            let answers = match packet.value()? {
                Value::None => None,
                Value::Int(place) => Some(WorkerId::new(place.try_into().map_err(|_| WireError::Expected("a place"))?)),
                _ => return Err(WireError::Expected("a place or none")),
            };
            let calling = Calling { parts: parts(&packet.value()?)?, streams, answers };
            return Ok(Command::CallWith { register, function, args: packet.rest()?, calling: calling.into() });
        }
        action::SYNC_WORKER => Command::SyncWorker { worker: packet.id()? },
        action::COPY_FROM_WORKER_0 => Command::CopyFromWorker0 { register: register(&mut packet)?, host: Local(None) },
        action::COPY_TO_WORKER_0 => Command::CopyToWorker0 { register: register(&mut packet)?, host: Local(None) },
        action::DEBUG_GET => Command::DebugGet { register: register(&mut packet)?, worker: packet.id()? },
        action::DEBUG_SET => {
            Command::DebugSet { register: register(&mut packet)?, worker: packet.id()?, value: packet.value()? }
        }
        action::GET_ALL => Command::GetAll { register: register(&mut packet)? },
        action::SYNC_ALL => Command::SyncAll,
        action::RECOVER => Command::Recover { epoch: packet.int()? as u64 },
        action::RESIZE => Command::Resize { epoch: packet.int()? as u64, members: members(&mut packet)?.into() },
        number => return Err(WireError::Unknown { what: "command", number }),
    };
    packet.end()?;
    Ok(command)
}

/// The parts of the arguments of a call, if there are any.
fn parts(value: &Value) -> Result<Option<Parts>, WireError> {
    let part = |part: &Value| match part {
        Value::None => Some(None),
        Value::Shape(ends) => match ends[..] {
            [start, end] => Some(Some(start.try_into().ok()?..end.try_into().ok()?)),
            _ => None,
        },
        _ => None,
    };
    let parts = match value {
        Value::None => return Ok(None),
        Value::Array(parts) => parts.iter().map(part).collect::<Option<Parts>>(),
        _ => None,
    };
    parts.map(Some).ok_or(WireError::Expected("parts of the arguments of a call"))
}

fn members(packet: &mut Packet<'_>) -> Result<Members, WireError> {
    let [groups, nodes] = [packet.id()?, packet.id()?].map(|number: u32| number as usize);
    let (mut places, mut count) = (Vec::new(), 0);
    while packet.left() > 0 {
        let (first, len): (u32, u32) = (packet.id()?, packet.id()?);
        let end = first.checked_add(len).ok_or(WireError::Expected("places of workers"))?;
        places.push(WorkerRange::new(first..end));
        count += len as usize;
    }
    let world = World::new(count, groups).and_then(|world| world.on_nodes(nodes));
    world.and_then(|world| Members::of_ranges(world, places)).map_err(|_| WireError::Expected("places of workers"))
}

#[inline]
fn register(packet: &mut Packet<'_>) -> Result<RegisterId, WireError> {
    let id: u32 = packet.id()?;
    if id < RegisterId::COUNT { Ok(id.into()) } else { Err(WireError::Unknown { what: "register", number: id.into() }) }
}
