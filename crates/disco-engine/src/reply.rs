//! Encodes replies of workers.

use std::sync::Arc;

use disco_core::channel::{Reply, SMALL_FRAME};
use disco_core::error::Failure;
use disco_core::wire::Message;
use disco_core::{Error, Result, Value, WorkerId};

/// Encodes a reply, wrapped by `wrap`. A value that can't be encoded is replaced by a failure.
///
/// # Errors
/// The failure can't be encoded either.
pub fn encode(worker: WorkerId, seq: u64, reply: Reply, wrap: impl Fn(Message) -> Message) -> Result<Vec<u8>> {
    wrap(Message::Reply { seq, reply }).encode().or_else(|error| {
        let reply = refuse(worker, seq, &error);
        wrap(Message::Reply { seq, reply }).encode()
    })
}

/// Returns the reply, or a failure in place of a value larger than `limit` bytes.
pub fn within(limit: usize, worker: WorkerId, seq: u64, reply: Reply) -> Reply {
    match reply.as_ref().map_or(0, Value::payload_len) {
        bytes if bytes > limit.max(SMALL_FRAME) => refuse(
            worker,
            seq,
            &Error::invalid(format!(
                "a value of {bytes} bytes can't go to the controller, the limit is {limit} bytes for the value of one reply; raise \
                 the limit (`value_limit`), or send the tensor to worker 0 (`send_to_worker`) if that is a thread of the \
                 controller, whose values have no limit"
            )),
        ),
        _ => reply,
    }
}

fn refuse(worker: WorkerId, seq: u64, error: &Error) -> Reply {
    Err(Arc::new(Failure {
        worker,
        command: seq,
        operation: "reply".into(),
        register: None,
        message: error.to_string(),
        causes: Vec::new(),
        aborted: false,
        kind: error.kind(),
        user: None,
    }))
}
