//! Packets that both ends of a connection make.

use std::sync::Arc;

use disco_core::channel::Reply;
use disco_core::error::Failure;
use disco_core::wire::Message;
use disco_core::{Error, Result, Value, WorkerId};

use crate::reactor::Connection;

/// Tells the other end why it is sent away, if it still listens.
pub(crate) fn refuse(connection: &Connection, why: &Error) {
    let told = Message::Bye(why.to_string()).encode().and_then(|packet| connection.send_last(packet));
    if let Err(error) = told {
        tracing::debug!(%error, %why, "nobody to tell");
    }
}

/// Sends an answer. That the other end is gone shows when it is listened to.
///
/// # Errors
/// It can't become bytes.
pub(crate) fn answer(connection: &Connection, id: u64, result: Result<Value>) -> Result<()> {
    let packet = Message::Answer { id, result }.encode();
    // A value that can't leave the process: whoever asked is told so.
    let packet = packet.or_else(|error| Message::Answer { id, result: Err(error) }.encode())?;
    if let Err(error) = connection.send(packet, None) {
        tracing::debug!(%error, "nobody to answer");
    }
    Ok(())
}

/// The packet of a reply, in whatever `wrap` puts it in. A value that can't leave the process is answered as a failure.
///
/// # Errors
/// Not even that can become bytes.
pub(crate) fn encode_reply(
    worker: WorkerId,
    seq: u64,
    reply: Reply,
    wrap: impl Fn(Message) -> Message,
) -> Result<Vec<u8>> {
    wrap(Message::Reply { seq, reply }).encode().or_else(|error| {
        let failure = Failure {
            worker,
            command: seq,
            operation: "reply".into(),
            register: None,
            message: error.to_string(),
            causes: Vec::new(),
            aborted: false,
        };
        wrap(Message::Reply { seq, reply: Err(Arc::new(failure)) }).encode()
    })
}
