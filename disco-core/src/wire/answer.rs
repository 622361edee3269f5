//! Encoding of replies and notices.

use std::sync::Arc;

use super::action::{NOTICE_CANCELLED, NOTICE_FAILED, NOTICE_RESULT, NOTICE_RESULTS_END};
use super::command::{write, write_debug};
use super::field::{Field, variants};
use super::{Packet, WireError, Writer, action};
use crate::command::Command;
use crate::error::{Failure, Result};
use crate::id::WorkerId;
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
        (Err(failure), _) => {
            let mut args = vec![Value::Int(action::FAILED)];
            failure.put(&mut args);
            write(&mut to, &args, &[])?;
        }
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
        action::FAILED => Err(Field::take(&mut packet)?),
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
    let (mut to, mut args) = (Writer::default(), Vec::new());
    notice.put(&mut args);
    write(&mut to, &args, &[])?;
    Ok(to.into_bytes())
}

/// Decodes a notice.
///
/// # Errors
/// The packet is not a valid notice.
pub fn decode_notice(mut packet: Packet<'_>) -> Result<Notice, WireError> {
    let notice = Field::take(&mut packet)?;
    packet.end()?;
    Ok(notice)
}

variants!(Notice, "notice", {
    NOTICE_FAILED => Failed { epoch, failure },
    NOTICE_CANCELLED => Cancelled { command, has_left, ops },
    NOTICE_RESULT => Result { command, number, value },
    NOTICE_RESULTS_END => ResultsEnd { command, count, outcome },
});

/// The number of collectives, or none.
impl Field for CallOps {
    fn put(&self, args: &mut Vec<Value>) {
        match self {
            CallOps::Collectives(number) => Some(*number),
            CallOps::Other => None,
        }
        .put(args);
    }

    fn take(packet: &mut Packet<'_>) -> Result<Self, WireError> {
        let number: Option<u64> = Field::take(packet)?;
        Ok(number.map_or(CallOps::Other, CallOps::Collectives))
    }
}

/// The failure, or none.
impl Field for Result<(), Arc<Failure>> {
    fn put(&self, args: &mut Vec<Value>) {
        self.as_ref().err().cloned().put(args);
    }

    fn take(packet: &mut Packet<'_>) -> Result<Self, WireError> {
        let failure: Option<Arc<Failure>> = Field::take(packet)?;
        Ok(failure.map_or(Ok(()), Err))
    }
}

/// `0, value`, or `1` and the failure.
impl Field for Reply {
    fn put(&self, args: &mut Vec<Value>) {
        args.push(Value::Int(self.is_err().into()));
        match self {
            Ok(value) => args.push(value.clone()),
            Err(failure) => failure.put(args),
        }
    }

    fn take(packet: &mut Packet<'_>) -> Result<Self, WireError> {
        match packet.int()? {
            0 => packet.value().map(Ok),
            1 => Field::take(packet).map(Err),
            number => Err(WireError::Unknown { what: "reply", number }),
        }
    }
}
