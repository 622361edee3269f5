//! What workers say and what the controller does with it, by whatever connection it comes.

use std::ops::Range;
use std::sync::Arc;

use disco_core::activity::Progress;
use disco_core::channel::{Inbox, Notice, Reply};
use disco_core::error::Failure;
use disco_core::link::Shared;
use disco_core::wire::{self, Message, Packet, StoreCall};
use disco_core::{Error, Result, Value, WorkerId};

use crate::connection::Connection;

/// Passes on what a worker says that is in `epoch` at the latest; what it does goes to `progress`.
///
/// # Errors
/// No worker says that.
pub(crate) fn hear(
    worker: WorkerId,
    message: Message,
    inbox: &Arc<dyn Inbox>,
    epoch: u64,
    progress: impl FnOnce(Progress),
) -> Result<()> {
    match message {
        Message::Progress(new) => progress(new),
        Message::Reply { reply: Err(failure), .. } if failure.worker != worker => {
            return Err(Error::invalid(format!("a failure of {}", failure.worker)));
        }
        Message::Reply { seq, reply } => inbox.reply(worker, seq, reply),
        Message::Notice(packet) => {
            let notice = wire::decode_notice(Packet::split(&packet)?.0)?;
            let is_possible = match &notice {
                Notice::Failed { epoch: of, failure } => failure.worker == worker && *of <= epoch,
                _ => true,
            };
            if !is_possible {
                return Err(Error::invalid(format!("the notice of another worker or epoch: {notice}")));
            }
            inbox.notice(worker, notice);
        }
        other => return Err(Error::invalid(other.to_string())),
    }
    Ok(())
}

/// A worker alone.
pub(crate) fn one(worker: WorkerId) -> Range<WorkerId> {
    worker..WorkerId::new(worker.index() as u32 + 1)
}

/// Tells the other end why it is sent away, if it still listens.
pub(crate) fn refuse(connection: &Connection, why: &Error) {
    let told = Message::Bye(why.to_string()).encode().and_then(|packet| connection.send_last(packet));
    if let Err(error) = told {
        tracing::debug!(%error, %why, "nobody to tell");
    }
}

/// Does what a worker asks of the store, number, epoch and call, where none can be beyond `latest`.
///
/// # Errors
/// No worker asks that.
pub(crate) fn call_store(
    connection: &Arc<Connection>,
    shared: &Shared,
    latest: u64,
    (id, epoch, call): (u64, u64, StoreCall),
) -> Result<()> {
    if epoch > latest {
        return Err(Error::invalid(format!("a question in epoch {epoch}, which nobody has begun")));
    }
    let connection = connection.clone();
    let tell = move |result| {
        if let Err(error) = answer(&connection, id, result) {
            tracing::debug!(%error, "an answer does not go on");
        }
    };
    shared.store().call(epoch, call, Box::new(tell));
    Ok(())
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
