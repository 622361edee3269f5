//! Replies of workers, as packets.

use std::sync::Arc;

use disco_core::channel::{Reply, SMALL_FRAME};
use disco_core::error::Failure;
use disco_core::wire::Message;
use disco_core::{Error, Result, Value, WorkerId};

/// The packet of a reply, in whatever `wrap` puts it in. A value that can't leave the process is answered as a failure.
///
/// # Errors
/// Not even that can become bytes.
pub(crate) fn encode(worker: WorkerId, seq: u64, reply: Reply, wrap: impl Fn(Message) -> Message) -> Result<Vec<u8>> {
    wrap(Message::Reply { seq, reply }).encode().or_else(|error| {
        let reply = refuse(worker, seq, &error);
        wrap(Message::Reply { seq, reply }).encode()
    })
}

/// The reply, or a failure in place of a value above `limit`.
pub(crate) fn within(limit: usize, worker: WorkerId, seq: u64, reply: Reply) -> Reply {
    match reply.as_ref().map_or(0, Value::payload_len) {
        bytes if bytes > limit.max(SMALL_FRAME) => refuse(
            worker,
            seq,
            &Error::invalid(format!(
                "a value of {bytes} bytes can't go to the controller, the limit is {limit} bytes for the value of one reply; raise \
                 the limit (`Builder::value_limit`), or send the tensor to worker 0 (`send_to_worker`), whose values have no limit"
            )),
        ),
        _ => reply,
    }
}

fn refuse(worker: WorkerId, seq: u64, error: &Error) -> Reply {
    Err(Arc::new(Failure {
        worker,
        command: seq,
        operation: "get".into(),
        register: None,
        message: error.to_string(),
        causes: Vec::new(),
        aborted: false,
        kind: error.kind(),
        user: None,
    }))
}
