//! Results that a call sends while it runs: the worker's side, and the keys of the store by which it and the controller
//! exchange them.
//!
//! ```text
//! worker                                             controller
//! RESULT stream/worker/number ← the value     ──▶    takes it, deletes the key, waits for the next one
//! waits for TAKEN of number - WINDOW          ◀──    TAKEN stream/worker/number ← empty
//! ```
//!
//! The command is a call of `disco.call_streaming`, whose arguments are the function, the number of the stream and the
//! function's arguments.

use crate::context::WorkerContext;
use crate::error::{Error, Result};
use crate::id::{RegisterId, WorkerId};
use crate::value::Value;

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

/// The function, the stream and the arguments of a streaming call.
///
/// # Errors
/// A session has not made these arguments.
pub(crate) fn streamed(args: &[Value]) -> Result<(RegisterId, u64, &[Value])> {
    match args {
        [Value::Register(function), Value::Int(stream), args @ ..] => Ok((*function, stream.cast_unsigned(), args)),
        _ => Err(Error::invalid("the arguments are not those of a session")),
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
