//! Calls that send results while they run: calls of `disco.call_streaming`.
//!
//! Its arguments are the function, a shape of the number of the stream, the
//! epoch and the number of workers at the call, and the function's arguments.

use crate::context::WorkerContext;
use crate::error::{Error, Result};
use crate::id::RegisterId;
use crate::value::Value;

use super::{Args, BoxError, Object};

/// The worker function's name.
pub(crate) const CALL_STREAMING: &str = "disco.call_streaming";

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
