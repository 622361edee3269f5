//! Encoding of the cause of a peer's loss.
//!
//! Every cause has four values, `kind, number, flag, text`, so that a cause of an unknown kind can be read too.

use std::time::Duration;

use super::value::clip;
use super::{Packet, WireError};
use crate::error::{LossCause, ProcessEnd};
use crate::value::Value;

/// Codes of the kinds of causes.
mod kind {
    pub(super) const OTHER: i64 = 0;
    pub(super) const CONNECTION_CLOSED: i64 = 1;
    pub(super) const CONNECTION_FAILED: i64 = 2;
    /// The number is the exit code. The flag, here and below, says whether the process had connected.
    pub(super) const EXITED: i64 = 3;
    pub(super) const SIGNALED: i64 = 4;
    pub(super) const SIGNALED_WITH_CORE: i64 = 5;
    pub(super) const ENDED: i64 = 6;
    /// The flag says whether there is an error.
    pub(super) const THREAD_ENDED: i64 = 7;
    pub(super) const PANICKED: i64 = 8;
    /// The number is a time in nanoseconds.
    pub(super) const SILENT: i64 = 9;
    pub(super) const PROTOCOL_VIOLATION: i64 = 10;
    /// The number is a count of bytes.
    pub(super) const UNREAD: i64 = 11;
    pub(super) const CLOSED_WITH_REASON: i64 = 12;
    pub(super) const REFUSED: i64 = 13;
    pub(super) const COMMUNICATOR_DROPPED: i64 = 14;
    /// The number is a count of bytes.
    pub(super) const UNACKNOWLEDGED: i64 = 15;
}

pub(super) fn args(cause: &LossCause) -> Vec<Value> {
    let (kind, number, flag, text) = match cause {
        LossCause::Other(text) => (kind::OTHER, 0, false, text.as_str()),
        LossCause::ConnectionClosed => (kind::CONNECTION_CLOSED, 0, false, ""),
        LossCause::ConnectionFailed(text) => (kind::CONNECTION_FAILED, 0, false, text.as_str()),
        LossCause::ProcessEnded { end, connected } => {
            let (kind, number) = match end {
                ProcessEnd::Exited(code) => (kind::EXITED, i64::from(*code)),
                ProcessEnd::Signaled { signal, core_dumped: false } => (kind::SIGNALED, i64::from(*signal)),
                ProcessEnd::Signaled { signal, core_dumped: true } => (kind::SIGNALED_WITH_CORE, i64::from(*signal)),
                ProcessEnd::Unknown => (kind::ENDED, 0),
            };
            (kind, number, *connected, "")
        }
        LossCause::ThreadEnded(error) => (kind::THREAD_ENDED, 0, error.is_some(), error.as_deref().unwrap_or_default()),
        LossCause::Panicked(text) => (kind::PANICKED, 0, false, text.as_str()),
        LossCause::Silent(limit) => (kind::SILENT, i64::try_from(limit.as_nanos()).unwrap_or(i64::MAX), false, ""),
        LossCause::ProtocolViolation(text) => (kind::PROTOCOL_VIOLATION, 0, false, text.as_str()),
        LossCause::Unread(bytes) => (kind::UNREAD, i64::try_from(*bytes).unwrap_or(i64::MAX), false, ""),
        LossCause::Unacknowledged(bytes) => {
            (kind::UNACKNOWLEDGED, i64::try_from(*bytes).unwrap_or(i64::MAX), false, "")
        }
        LossCause::ClosedWithReason(text) => (kind::CLOSED_WITH_REASON, 0, false, text.as_str()),
        LossCause::Refused(text) => (kind::REFUSED, 0, false, text.as_str()),
        LossCause::CommunicatorDropped => (kind::COMMUNICATOR_DROPPED, 0, false, ""),
    };
    vec![Value::Int(kind), Value::Int(number), Value::Bool(flag), clip(text).into()]
}

pub(super) fn decode(packet: &mut Packet<'_>) -> Result<LossCause, WireError> {
    let (kind, number, flag, text) = (packet.int()?, packet.int()?, packet.bool()?, packet.string()?);
    let text = clip(&text).to_owned();
    let small = |what| i32::try_from(number).map_err(|_| WireError::Unknown { what, number });
    let large = |what| u64::try_from(number).map_err(|_| WireError::Unknown { what, number });
    let ended = |end| LossCause::ProcessEnded { end, connected: flag };
    let signaled = |core_dumped| -> Result<LossCause, WireError> {
        Ok(ended(ProcessEnd::Signaled { signal: small("signal")?, core_dumped }))
    };
    Ok(match kind {
        kind::OTHER => LossCause::Other(text),
        kind::CONNECTION_CLOSED => LossCause::ConnectionClosed,
        kind::CONNECTION_FAILED => LossCause::ConnectionFailed(text),
        kind::EXITED => ended(ProcessEnd::Exited(small("exit code")?)),
        kind::SIGNALED => signaled(false)?,
        kind::SIGNALED_WITH_CORE => signaled(true)?,
        kind::ENDED => ended(ProcessEnd::Unknown),
        kind::THREAD_ENDED => LossCause::ThreadEnded(flag.then_some(text)),
        kind::PANICKED => LossCause::Panicked(text),
        kind::SILENT => LossCause::Silent(Duration::from_nanos(large("duration")?)),
        kind::PROTOCOL_VIOLATION => LossCause::ProtocolViolation(text),
        kind::UNREAD => LossCause::Unread(usize::try_from(large("size")?).unwrap_or(usize::MAX)),
        kind::UNACKNOWLEDGED => LossCause::Unacknowledged(usize::try_from(large("size")?).unwrap_or(usize::MAX)),
        kind::CLOSED_WITH_REASON => LossCause::ClosedWithReason(text),
        kind::REFUSED => LossCause::Refused(text),
        kind::COMMUNICATOR_DROPPED => LossCause::CommunicatorDropped,
        number => return Err(WireError::Unknown { what: "cause of a loss", number }),
    })
}
