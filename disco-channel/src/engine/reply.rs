//! Replies of workers, as packets.

use std::sync::Arc;

use disco_core::channel::Reply;
use disco_core::error::Failure;
use disco_core::wire::Message;
use disco_core::{Result, WorkerId};

/// The packet of a reply, in whatever `wrap` puts it in. A value that can't leave the process is answered as a failure.
///
/// # Errors
/// Not even that can become bytes.
pub(crate) fn encode(worker: WorkerId, seq: u64, reply: Reply, wrap: impl Fn(Message) -> Message) -> Result<Vec<u8>> {
    wrap(Message::Reply { seq, reply }).encode().or_else(|error| {
        let failure = Failure {
            worker,
            command: seq,
            operation: "reply".into(),
            register: None,
            message: error.to_string(),
            causes: Vec::new(),
            aborted: false,
            kind: error.kind(),
            user: None,
        };
        wrap(Message::Reply { seq, reply: Err(Arc::new(failure)) }).encode()
    })
}
