//! Results that a call sends while it runs, as the store of the session has them.
//!
//! ```text
//! worker                                             controller
//! RESULT stream/worker/number ← the value     ──▶    takes it, deletes the key, waits for the next one
//! waits for TAKEN of number - WINDOW          ◀──    TAKEN stream/worker/number ← empty
//! RESULT stream/worker/number ← the end       ──▶    the call is executed, or left out
//! ```

use crate::command::Command;
use crate::error::{Error, Result};
use crate::id::{RegisterId, WorkerId};
use crate::signal::Reply;
use crate::value::Value;
use crate::wire::{self, Packet, WireError};

/// Results of one worker that the controller has not taken, at most. The next one waits.
pub(crate) const WINDOW: u64 = 16;

/// The content of a RESULT.
pub(crate) enum Sent {
    Value(Value),
    End(Reply),
}

impl Sent {
    /// # Errors
    /// The value can't leave the process.
    pub(crate) fn encode(self, from: WorkerId) -> Result<Vec<u8>> {
        let all = Command::GetAll { register: RegisterId::new(0) };
        let (command, reply) = match self {
            Self::Value(value) => (all, Ok(value)),
            Self::End(outcome) => (Command::SyncAll, outcome),
        };
        let is_end = matches!(command, Command::SyncAll);
        let mut bytes = wire::encode_reply(&command, from, &reply)?;
        bytes.push(is_end.into());
        Ok(bytes)
    }

    /// # Errors
    /// The bytes are not those of [`Sent::encode`].
    pub(crate) fn decode(bytes: &[u8]) -> Result<Self> {
        let (is_end, bytes) = bytes.split_last().ok_or(WireError::Expected("a result"))?;
        let (packet, _) = Packet::split(bytes)?;
        let reply = wire::decode_reply(packet)?;
        Ok(if *is_end == 1 { Self::End(reply) } else { Self::Value(reply.map_err(Error::Worker)?) })
    }
}

/// The key of a result.
pub(crate) fn result_key(stream: u64, worker: WorkerId, number: u64) -> String {
    format!("disco result {stream}/{}/{number}", worker.index())
}

/// The key that tells a worker that the controller has taken a result.
pub(crate) fn taken_key(stream: u64, worker: WorkerId, number: u64) -> String {
    format!("disco taken {stream}/{}/{number}", worker.index())
}
