//! Encoding of failures: their kinds, the causes of losses, and the errors of the store and of links.

use std::sync::Arc;

use super::field::{Field, put_clipped, variants};
use super::value::clip;
use super::{Packet, WireError};
use crate::error::{Error, ErrorKind, Failure, LossCause, ProcessEnd, Result, UserError};
use crate::value::Value;

/// Largest number of causes that cross a lane with a failure.
const MAX_CAUSES: usize = 32;

/// `worker, command, operation, register, aborted, kind, user error, message, cause…`
impl Field for Failure {
    fn put(&self, args: &mut Vec<Value>) {
        self.worker.put(args);
        self.command.put(args);
        self.operation.put(args);
        self.register.put(args);
        self.aborted.put(args);
        self.kind.put(args);
        self.user.put(args);
        self.message.put(args);
        self.causes.iter().take(MAX_CAUSES).for_each(|cause| cause.put(args));
    }

    fn take(packet: &mut Packet<'_>) -> Result<Self, WireError> {
        Ok(Self {
            worker: Field::take(packet)?,
            command: Field::take(packet)?,
            operation: Field::take(packet)?,
            register: Field::take(packet)?,
            aborted: Field::take(packet)?,
            kind: Field::take(packet)?,
            user: Field::take(packet)?,
            message: Field::take(packet)?,
            causes: Field::take(packet)?,
        })
    }
}

impl Field for Arc<Failure> {
    fn put(&self, args: &mut Vec<Value>) {
        put_clipped(&**self, args);
    }

    fn take(packet: &mut Packet<'_>) -> Result<Self, WireError> {
        Failure::take(packet).map(Arc::new)
    }
}

impl Field for UserError {
    fn put(&self, args: &mut Vec<Value>) {
        self.type_name().put(args);
        self.content().put(args);
    }

    fn take(packet: &mut Packet<'_>) -> Result<Self, WireError> {
        let (type_name, content) = (packet.string()?, packet.bytes()?);
        UserError::new(type_name, content).ok_or(WireError::Expected("an error of at most 64 KiB"))
    }
}

variants!(ErrorKind, "kind of error", {
    0 => User,
    1 => Panicked,
    2 => Aborted,
    3 => Broken,
    4 => Deadline { after },
    5 => Stalled { after },
    6 => Lost { workers },
    7 => Stuck,
    8 => Unsupported { backend },
    9 => Unavailable,
    10 => Library { backend, function, code },
    11 => System { code },
    12 => OutOfMemory { bytes },
    13 => Mismatch,
    14 => Invalid,
    15 => Argument,
    16 => UnknownFunction,
    17 => Busy,
    18 => Protocol,
    19 => Refused,
    20 => State,
    21 => Closed,
    22 => ForeignRef,
    23 => NoSuchWorker,
    24 => NoCommunicator,
    25 => NotRestored { epoch },
    26 => Cancelled,
});

variants!(LossCause, "cause of a loss", {
    0 => Other(text),
    1 => ConnectionClosed,
    2 => ConnectionFailed(text),
    3 => ProcessEnded { end, connected },
    4 => ThreadEnded(error),
    5 => Panicked(text),
    6 => Silent(limit),
    7 => ProtocolViolation(text),
    8 => Unread(bytes),
    9 => ClosedWithReason(text),
    10 => Refused(text),
    11 => CommunicatorDropped,
    12 => Unacknowledged(bytes),
});

variants!(ProcessEnd, "end of a process", {
    0 => Exited(code),
    1 => Signaled { signal, core_dumped },
    2 => Unknown,
});

/// The variant, as numbered by [`Error::as_text`], that stands for errors without an encoding.
const INVALID: u8 = 0;

/// Errors of the store or link keep their variant; other errors are sent as text.
impl Field for Result<Value> {
    fn put(&self, args: &mut Vec<Value>) {
        let mut head = |number| args.push(Value::Int(number));
        match self {
            Ok(value) => {
                head(0);
                args.push(value.clone());
            }
            Err(Error::Aborted { cause }) => {
                head(1);
                args.push(cause.to_string().into());
            }
            Err(Error::Deadline { operation, after, state }) => {
                head(3);
                args.push(clip(operation).into());
                after.put(args);
                args.push(clip(state).into());
            }
            Err(Error::System { operation, source }) if source.raw_os_error().is_some() => {
                head(4);
                source.raw_os_error().unwrap_or_default().put(args);
                args.push(clip(operation).into());
            }
            Err(other) => {
                head(2);
                let text = other.to_string();
                let (variant, text) = other.as_text().unwrap_or((INVALID, &text));
                u32::from(variant).put(args);
                args.push(clip(text).into());
            }
        }
    }

    fn take(packet: &mut Packet<'_>) -> Result<Self, WireError> {
        let error = match packet.int()? {
            0 => return packet.value().map(Ok),
            1 => Error::Aborted { cause: packet.string()?.into() },
            3 => Error::Deadline {
                operation: Field::take(packet)?,
                after: Field::take(packet)?,
                state: Field::take(packet)?,
            },
            2 => {
                let (number, text) = (packet.int()?, packet.string()?);
                let error = u8::try_from(number).ok().and_then(|variant| Error::from_text(variant, &*text));
                error.ok_or(WireError::Unknown { what: "error", number })?
            }
            4 => {
                let (code, operation) = (i32::take(packet)?, packet.string()?);
                Error::system(&*operation, std::io::Error::from_raw_os_error(code))
            }
            number => return Err(WireError::Unknown { what: "result", number }),
        };
        Ok(Err(error))
    }
}
