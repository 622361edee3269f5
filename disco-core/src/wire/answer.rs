//! Encoding of replies and notices.

use std::sync::Arc;

use super::command::{write, write_debug};
use super::value::clip;
use super::{Packet, WireError, Writer, action, error_kind};
use crate::command::Command;
use crate::error::{Failure, Result, UserError};
use crate::id::{RegisterId, WorkerId};
use crate::signal::{CallOps, Notice, Reply};
use crate::value::Value;

/// Encodes the reply to `command`. A worker replies in the order of its commands, so the packet does not contain the
/// command's number.
///
/// # Errors
/// The value can't leave the process.
pub fn encode_reply(command: &Command, from: WorkerId, reply: &Reply) -> Result<Vec<u8>> {
    let mut to = Writer::default();
    match (reply, command) {
        (Err(failure), _) => write(&mut to, &[Value::Int(action::FAILED)], &failure_args(failure))?,
        (Ok(_), Command::SyncWorker { .. }) => {
            write(&mut to, &[Value::Int(action::SYNC_WORKER), Value::Int(from.wire())], &[])?;
        }
        (Ok(value), Command::DebugGet { .. }) => write_debug(&mut to, &[Value::Int(action::DEBUG_GET)], value)?,
        (Ok(value), Command::GetAll { .. }) => {
            write(&mut to, &[Value::Int(action::GET_ALL)], std::slice::from_ref(value))?
        }
        (Ok(value), Command::CallWith { .. }) => {
            write(&mut to, &[Value::Int(action::CALL_WITH)], std::slice::from_ref(value))?
        }
        (Ok(_), Command::DebugSet { .. }) => write(&mut to, &[Value::Int(action::DEBUG_SET)], &[])?,
        (Ok(_), _) => write(&mut to, &[Value::Int(action::SYNC_ALL), Value::Int(from.wire())], &[])?,
    }
    Ok(to.into_bytes())
}

/// Decodes a reply.
///
/// # Errors
/// The packet is not a valid reply.
pub fn decode_reply(mut packet: Packet<'_>) -> Result<Reply, WireError> {
    let reply = match packet.int()? {
        action::SYNC_WORKER | action::SYNC_ALL => {
            packet.int()?;
            Ok(Value::None)
        }
        action::DEBUG_GET | action::GET_ALL | action::CALL_WITH => Ok(packet.value()?),
        action::DEBUG_SET => Ok(Value::None),
        action::FAILED => return Ok(Err(Arc::new(decode_failure(packet)?))),
        number => return Err(WireError::Unknown { what: "answer", number }),
    };
    packet.end()?;
    Ok(reply)
}

/// Encodes a value, with all its tensors.
///
/// # Errors
/// The value can't leave the process.
pub fn encode_value(value: &Value) -> Result<Vec<u8>> {
    let mut to = Writer::default();
    write(&mut to, std::slice::from_ref(value), &[])?;
    Ok(to.into_bytes())
}

/// Decodes the bytes of [`encode_value`].
///
/// # Errors
/// The bytes are not a valid value.
pub fn decode_value(bytes: &[u8]) -> Result<Value, WireError> {
    let (mut packet, _) = Packet::split(bytes)?;
    let value = packet.value()?;
    packet.end()?;
    Ok(value)
}

/// Encodes a notice.
///
/// # Errors
/// The packet is too large.
pub fn encode_notice(notice: &Notice) -> Result<Vec<u8>> {
    let mut to = Writer::default();
    match notice {
        Notice::Failed { epoch, failure } => {
            let head = [Value::Int(action::NOTICE_FAILED), Value::Int(*epoch as i64)];
            write(&mut to, &head, &failure_args(failure))?;
        }
        Notice::Cancelled { command, has_left, ops } => {
            let collectives = match ops {
                CallOps::Collectives(number) => Value::Int(*number as i64),
                CallOps::Other => Value::None,
            };
            let head = [Value::Int(action::NOTICE_CANCELLED), Value::Int(*command as i64)];
            write(&mut to, &head, &[Value::Bool(*has_left), collectives])?;
        }
        Notice::Result { command, number, value } => {
            let head = [action::NOTICE_RESULT, *command as i64, *number as i64].map(Value::Int);
            write(&mut to, &head, &[Value::Bytes(value.clone())])?;
        }
        Notice::ResultsEnd { command, count, outcome } => {
            let head = [action::NOTICE_RESULTS_END, *command as i64, *count as i64].map(Value::Int);
            write(&mut to, &head, &outcome.as_ref().map_or_else(|failure| failure_args(failure), |()| Vec::new()))?;
        }
    }
    Ok(to.into_bytes())
}

/// Decodes a notice.
///
/// # Errors
/// The packet is not a valid notice.
pub fn decode_notice(mut packet: Packet<'_>) -> Result<Notice, WireError> {
    match packet.int()? {
        action::NOTICE_FAILED => {
            let epoch = packet.int()? as u64;
            Ok(Notice::Failed { epoch, failure: Arc::new(decode_failure(packet)?) })
        }
        action::NOTICE_CANCELLED => {
            let command = packet.number()?;
            let Value::Bool(has_left) = packet.value()? else { return Err(WireError::Expected("a bool")) };
            let ops = match packet.value()? {
                Value::None => CallOps::Other,
                Value::Int(number) => CallOps::Collectives(number as u64),
                _ => return Err(WireError::Expected("a number of collectives or none")),
            };
            packet.end()?;
            Ok(Notice::Cancelled { command, has_left, ops })
        }
        action::NOTICE_RESULT => {
            let (command, number, value) = (packet.number()?, packet.number()?, packet.bytes()?);
            packet.end()?;
            Ok(Notice::Result { command, number, value })
        }
        action::NOTICE_RESULTS_END => {
            let (command, count) = (packet.number()?, packet.number()?);
            let outcome = if packet.left() == 0 { Ok(()) } else { Err(Arc::new(decode_failure(packet)?)) };
            Ok(Notice::ResultsEnd { command, count, outcome })
        }
        number => Err(WireError::Unknown { what: "notice", number }),
    }
}

/// Largest number of causes that cross a lane with a failure.
const MAX_CAUSES: usize = 32;

/// The arguments of a failure: `worker, command, operation, register or none, aborted, kind (5 values), user error (2
/// values), message, cause…`. Texts are truncated to 64 KiB.
pub(super) fn failure_args(failure: &Failure) -> Vec<Value> {
    let mut args = vec![
        Value::Int(failure.worker.wire()),
        Value::Int(failure.command as i64),
        clip(&failure.operation).into(),
        failure.register.map_or(Value::None, |register| Value::Int(register.wire())),
        Value::Bool(failure.aborted),
    ];
    args.extend(error_kind::args(&failure.kind));
    match &failure.user {
        Some(user) => args.extend([Value::Str(user.type_name().clone()), Value::Bytes(user.content().clone())]),
        None => args.extend([Value::None, Value::None]),
    }
    args.push(clip(&failure.message).into());
    args.extend(failure.causes.iter().take(MAX_CAUSES).map(|cause| Value::from(clip(cause))));
    args
}

pub(super) fn decode_failure(mut packet: Packet<'_>) -> Result<Failure, WireError> {
    let worker = packet.id()?;
    let command = packet.int()? as u64;
    let operation = packet.string()?.to_string();
    let register = match packet.value()? {
        Value::None => None,
        Value::Int(id) => Some(RegisterId::new(u32::try_from(id).map_err(|_| WireError::Expected("a register id"))?)),
        _ => return Err(WireError::Expected("a register or none")),
    };
    let Value::Bool(aborted) = packet.value()? else { return Err(WireError::Expected("a bool")) };
    let kind = error_kind::decode(&mut packet)?;
    let user = match (packet.value()?, packet.value()?) {
        (Value::None, Value::None) => None,
        (Value::Str(type_name), Value::Bytes(content)) => {
            Some(UserError::new(type_name, content).ok_or(WireError::Expected("an error of at most 64 KiB"))?)
        }
        _ => return Err(WireError::Expected("an error of the program or none")),
    };
    let message = packet.string()?.to_string();
    let causes = packet.rest()?.into_iter().map(|cause| match cause {
        Value::Str(text) => Ok(text.to_string()),
        _ => Err(WireError::Expected("a string")),
    });
    let causes = causes.collect::<Result<_, _>>()?;
    Ok(Failure { worker, command, operation, register, message, causes, aborted, kind, user })
}
