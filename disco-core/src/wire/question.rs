//! Encoding of requests to the store and of its answers.

use std::sync::Arc;

use super::value::{clip, duration};
use super::{Packet, StoreCall, WireError};
use crate::error::{Error, Result};
use crate::value::Value;

impl StoreCall {
    pub(super) fn args(&self) -> Vec<Value> {
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

    pub(super) fn decode(packet: &mut Packet<'_>) -> Result<Self, WireError> {
        let (number, key) = (packet.int()?, packet.string()?);
        match number {
            0 => Ok(StoreCall::Set(key, packet.bytes()?)),
            1 => Ok(StoreCall::Get(key)),
            2 => Ok(StoreCall::Wait(key, packet.duration()?)),
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

/// The variant, as numbered by [`Error::as_text`], that stands for errors without an encoding.
const INVALID: u8 = 0;

/// Encodes a result. Errors of the store or link keep their variant; other errors are sent as text.
pub(super) fn result_args(result: &Result<Value>) -> Vec<Value> {
    match result {
        Ok(value) => vec![Value::Int(0), value.clone()],
        Err(Error::Aborted { cause }) => vec![Value::Int(1), Value::from(cause.to_string())],
        Err(Error::Deadline { operation, after, state }) => {
            vec![Value::Int(3), clip(operation).into(), duration(*after), clip(state).into()]
        }
        Err(Error::System { operation, source }) if source.raw_os_error().is_some() => {
            let code = source.raw_os_error().unwrap_or_default();
            vec![Value::Int(4), Value::Int(code.into()), clip(operation).into()]
        }
        Err(other) => {
            let text = other.to_string();
            let (variant, text) = other.as_text().unwrap_or((INVALID, &text));
            vec![Value::Int(2), Value::Int(variant.into()), clip(text).into()]
        }
    }
}

pub(super) fn decode_result(packet: &mut Packet<'_>) -> Result<Result<Value>, WireError> {
    match packet.int()? {
        0 => Ok(Ok(packet.value()?)),
        1 => Ok(Err(Error::Aborted { cause: packet.string()?.into() })),
        3 => {
            let (operation, after, state) = (packet.string()?, packet.duration()?, packet.string()?);
            Ok(Err(Error::Deadline { operation: operation.to_string(), after, state: state.to_string() }))
        }
        2 => {
            let (variant, text) = (packet.int()?, packet.string()?);
            let error = u8::try_from(variant).ok().and_then(|variant| Error::from_text(variant, &*text));
            error.map(Err).ok_or(WireError::Unknown { what: "error", number: variant })
        }
        4 => {
            let (number, operation) = (packet.int()?, packet.string()?);
            let code = i32::try_from(number);
            let code = code.map_err(|_| WireError::Unknown { what: "error code of the system", number })?;
            Ok(Err(Error::system(&*operation, std::io::Error::from_raw_os_error(code))))
        }
        number => Err(WireError::Unknown { what: "result", number }),
    }
}
