//! Encoding of the kind of a worker's error, as part of a failure.
//!
//! Every kind has five values: `kind, number, number, text, text`.

use std::sync::Arc;
use std::time::Duration;

use super::value::clip;
use super::{Packet, WireError};
use crate::error::ErrorKind;
use crate::value::Value;
use crate::worker_range::WorkerRange;

/// Codes of the kinds, and the meaning of the values.
mod kind {
    pub(super) const USER: i64 = 0;
    pub(super) const PANICKED: i64 = 1;
    pub(super) const ABORTED: i64 = 2;
    pub(super) const BROKEN: i64 = 3;
    /// The first number is a time in nanoseconds.
    pub(super) const DEADLINE: i64 = 4;
    pub(super) const STALLED: i64 = 5;
    /// The numbers are the first worker and the count of workers.
    pub(super) const LOST: i64 = 6;
    pub(super) const STUCK: i64 = 7;
    /// The first text is the backend.
    pub(super) const UNSUPPORTED: i64 = 8;
    pub(super) const UNAVAILABLE: i64 = 9;
    /// The first number is the return code; the texts are the backend and the function.
    pub(super) const LIBRARY: i64 = 10;
    /// The numbers are the code, and 1 if there is a code.
    pub(super) const SYSTEM: i64 = 11;
    /// The first number is a count of bytes.
    pub(super) const OUT_OF_MEMORY: i64 = 12;
    pub(super) const MISMATCH: i64 = 13;
    pub(super) const INVALID: i64 = 14;
    pub(super) const ARGUMENT: i64 = 15;
    pub(super) const UNKNOWN_FUNCTION: i64 = 16;
    pub(super) const BUSY: i64 = 17;
    pub(super) const PROTOCOL: i64 = 18;
    pub(super) const REFUSED: i64 = 19;
    pub(super) const STATE: i64 = 20;
    pub(super) const CLOSED: i64 = 21;
    pub(super) const FOREIGN_REF: i64 = 22;
    pub(super) const NO_SUCH_WORKER: i64 = 23;
    pub(super) const NO_COMMUNICATOR: i64 = 24;
    /// The first number is the epoch.
    pub(super) const REPLACED: i64 = 25;
    pub(super) const CANCELLED: i64 = 26;
}

pub(super) fn args(of: &ErrorKind) -> [Value; 5] {
    let nanos = |after: &Duration| i64::try_from(after.as_nanos()).unwrap_or(i64::MAX);
    let plain = |kind| (kind, 0, 0, "", "");
    let (kind, a, b, first, second) = match of {
        ErrorKind::User => plain(kind::USER),
        ErrorKind::Panicked => plain(kind::PANICKED),
        ErrorKind::Aborted => plain(kind::ABORTED),
        ErrorKind::Cancelled => plain(kind::CANCELLED),
        ErrorKind::Broken => plain(kind::BROKEN),
        ErrorKind::Deadline { after } => (kind::DEADLINE, nanos(after), 0, "", ""),
        ErrorKind::Stalled { after } => (kind::STALLED, nanos(after), 0, "", ""),
        ErrorKind::Lost { workers } => (kind::LOST, workers.first().wire(), workers.len() as i64, "", ""),
        ErrorKind::Stuck => plain(kind::STUCK),
        ErrorKind::Unsupported { backend } => (kind::UNSUPPORTED, 0, 0, &**backend, ""),
        ErrorKind::Unavailable => plain(kind::UNAVAILABLE),
        ErrorKind::Library { backend, function, code } => (kind::LIBRARY, *code, 0, &**backend, &**function),
        ErrorKind::System { code } => {
            (kind::SYSTEM, code.unwrap_or_default().into(), i64::from(code.is_some()), "", "")
        }
        ErrorKind::OutOfMemory { bytes } => (kind::OUT_OF_MEMORY, i64::try_from(*bytes).unwrap_or(i64::MAX), 0, "", ""),
        ErrorKind::Mismatch => plain(kind::MISMATCH),
        ErrorKind::Invalid => plain(kind::INVALID),
        ErrorKind::Argument => plain(kind::ARGUMENT),
        ErrorKind::UnknownFunction => plain(kind::UNKNOWN_FUNCTION),
        ErrorKind::Busy => plain(kind::BUSY),
        ErrorKind::Protocol => plain(kind::PROTOCOL),
        ErrorKind::Refused => plain(kind::REFUSED),
        ErrorKind::State => plain(kind::STATE),
        ErrorKind::Closed => plain(kind::CLOSED),
        ErrorKind::ForeignRef => plain(kind::FOREIGN_REF),
        ErrorKind::NoSuchWorker => plain(kind::NO_SUCH_WORKER),
        ErrorKind::NoCommunicator => plain(kind::NO_COMMUNICATOR),
        ErrorKind::NotRestored { epoch } => (kind::REPLACED, i64::try_from(*epoch).unwrap_or(i64::MAX), 0, "", ""),
    };
    [Value::Int(kind), Value::Int(a), Value::Int(b), clip(first).into(), clip(second).into()]
}

pub(super) fn decode(packet: &mut Packet<'_>) -> Result<ErrorKind, WireError> {
    let (kind, a, b) = (packet.int()?, packet.int()?, packet.int()?);
    let [first, second] = [packet.string()?, packet.string()?].map(|text| Arc::<str>::from(clip(&text)));
    let small = |what, number: i64| u32::try_from(number).map_err(|_| WireError::Unknown { what, number });
    let large = |what| u64::try_from(a).map_err(|_| WireError::Unknown { what, number: a });
    let after = || large("duration").map(Duration::from_nanos);
    Ok(match kind {
        kind::USER => ErrorKind::User,
        kind::PANICKED => ErrorKind::Panicked,
        kind::ABORTED => ErrorKind::Aborted,
        kind::BROKEN => ErrorKind::Broken,
        kind::DEADLINE => ErrorKind::Deadline { after: after()? },
        kind::STALLED => ErrorKind::Stalled { after: after()? },
        kind::LOST => {
            let (start, len) = (small("worker", a)?, small("number of workers", b)?);
            let end = start.checked_add(len).ok_or(WireError::Expected("a range of workers"))?;
            ErrorKind::Lost { workers: WorkerRange::new(start..end) }
        }
        kind::STUCK => ErrorKind::Stuck,
        kind::UNSUPPORTED => ErrorKind::Unsupported { backend: first },
        kind::UNAVAILABLE => ErrorKind::Unavailable,
        kind::LIBRARY => ErrorKind::Library { backend: first, function: second, code: a },
        kind::SYSTEM => {
            let code =
                i32::try_from(a).map_err(|_| WireError::Unknown { what: "error code of the system", number: a })?;
            ErrorKind::System { code: (b != 0).then_some(code) }
        }
        kind::OUT_OF_MEMORY => ErrorKind::OutOfMemory { bytes: large("size")? },
        kind::MISMATCH => ErrorKind::Mismatch,
        kind::INVALID => ErrorKind::Invalid,
        kind::ARGUMENT => ErrorKind::Argument,
        kind::UNKNOWN_FUNCTION => ErrorKind::UnknownFunction,
        kind::BUSY => ErrorKind::Busy,
        kind::PROTOCOL => ErrorKind::Protocol,
        kind::REFUSED => ErrorKind::Refused,
        kind::STATE => ErrorKind::State,
        kind::CLOSED => ErrorKind::Closed,
        kind::FOREIGN_REF => ErrorKind::ForeignRef,
        kind::NO_SUCH_WORKER => ErrorKind::NoSuchWorker,
        kind::NO_COMMUNICATOR => ErrorKind::NoCommunicator,
        kind::REPLACED => ErrorKind::NotRestored { epoch: large("epoch")? },
        kind::CANCELLED => ErrorKind::Cancelled,
        number => return Err(WireError::Unknown { what: "kind of error", number }),
    })
}
