//! Results that a call sends while it runs: the worker's side, and the keys of the store by which it and the controller
//! exchange them.
//!
//! ```text
//! worker                                             controller
//! RESULT stream/worker/number ← the value     ──▶    takes it, deletes the key, waits for the next one
//! waits for TAKEN of number - WINDOW          ◀──    TAKEN stream/worker/number ← empty
//! RESULT stream/worker/number ← the end       ──▶    the call is executed, or left out
//! ```
//!
//! The command is a call of `disco.call_streaming`. Its arguments are the function, a shape of the number of the stream, the
//! epoch and the number of workers at the call, and the function's arguments.

use crate::command::Command;
use crate::context::WorkerContext;
use crate::error::{Error, Result};
use crate::id::{RegisterId, WorkerId};
use crate::signal::Reply;
use crate::value::Value;
use crate::wire::{self, Packet, WireError};

use super::{Args, BoxError, Object};

/// The worker function's name.
pub(crate) const CALL_STREAMING: &str = "disco.call_streaming";

/// Results of one worker that the controller has not taken, at most. The next one waits.
pub(crate) const WINDOW: u64 = 16;

inventory::submit! {
    super::FunctionEntry {
        name: CALL_STREAMING,
        call: refuse,
        place: concat!(module_path!(), " at ", file!(), ":", line!()),
    }
}

/// The worker's loop executes these calls ([`streamed`]).
fn refuse(_: &mut WorkerContext, _: &Args<'_>) -> Result<Object, BoxError> {
    Err(Error::invalid("only the method `call_streaming` of a session calls this function").into())
}

/// The function, the stream and the arguments of a streaming call, on a worker in `epoch` of a session of `workers` workers.
///
/// # Errors
/// The controller expects the results of another epoch or of other workers; or a session has not made these arguments.
pub(crate) fn streamed(args: &[Value], epoch: u64, workers: usize) -> Result<(RegisterId, u64, &[Value])> {
    let [Value::Register(function), Value::Shape(stream), args @ ..] = args else {
        return Err(Error::invalid("the arguments are not those of a session"));
    };
    match stream[..] {
        [stream, of, among] if of.cast_unsigned() == epoch && usize::try_from(among) == Ok(workers) => {
            Ok((*function, stream.cast_unsigned(), args))
        }
        [_, _, _] => Err(Error::invalid("the session has recovered or was resized after the call")),
        _ => Err(Error::invalid("the arguments are not those of a session")),
    }
}

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
