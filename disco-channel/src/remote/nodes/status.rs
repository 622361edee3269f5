//! Asks the controller of a session of nodes for the status of the session.

use std::sync::Arc;
use std::time::{Duration, Instant};

use disco_core::status::Status;
use disco_core::wire::Message;
use disco_core::{Error, Result};
use disco_engine::handshake::HANDSHAKE_TIMEOUT;
use disco_engine::limits::MAX_PACKET_BYTES;
use disco_engine::noise::check;
use rustix::event::PollFlags;

use super::node::JoinOptions;
use super::node::join::{Failed, enter};
use crate::remote::reactor::{Connection, Incoming, Waker, poll_one};

/// Asks the controller at [`JoinOptions::address`] for the status of its session. Needs the session's token. Makes one
/// attempt, which takes at most 5 s, and 5 s more for the answer; the other options are those of nodes and are ignored.
///
/// # Errors
/// This program is built without the feature `nodes`. No controller listens at the address, or it does not answer in time: sessions of threads or processes have no
/// listener, and neither have sessions that have started their nodes themselves. The listener is not a controller, is of
/// another version, has another token, or refuses.
pub fn status(options: &JoinOptions) -> Result<Status> {
    check("asking a controller for the status of its session")?;
    let failed =
        |why: String| Error::refused(format!("asking the controller at {} for its status: {why}", options.address));
    let (stream, (_, keys)) = enter(options, Instant::now() + HANDSHAKE_TIMEOUT).map_err(|why| match why {
        Failed::NoListener(why) => failed(format!(
            "{why}; only a session that waits for nodes listens: `disco run --nodes`, or `NodeOptions::listen`"
        )),
        Failed::ForNow(why) | Failed::Refused(why) => failed(why),
        Failed::ForGood(error) => error,
    })?;
    let broken = |error: std::io::Error| failed(error.to_string());
    let connection = super::connection(stream, Arc::new(Waker::new().map_err(broken)?)).map_err(broken)?;
    let mut incoming = Incoming::new(MAX_PACKET_BYTES);
    if let Some(keys) = keys {
        connection.encrypt(keys.clone())?;
        incoming.decrypt(keys);
    }
    connection.send(Message::AskStatus.encode()?, None)?;
    match answer(&connection, &mut incoming)? {
        Some(Message::Status(status)) => Ok(*status),
        Some(Message::Bye(why)) => Err(failed(why)),
        Some(other) => Err(failed(format!("it answers {other}"))),
        None if incoming.is_closed() => Err(failed("it closed the connection without an answer".into())),
        None => Err(failed(format!("it did not answer within {HANDSHAKE_TIMEOUT:?}"))),
    }
}

/// The next message; none if the connection is closed or no message comes in time.
fn answer(connection: &Connection, incoming: &mut Incoming) -> Result<Option<Message>> {
    let end = Instant::now() + HANDSHAKE_TIMEOUT;
    loop {
        if let Some(message) = incoming.next()? {
            return Ok(Some(message));
        }
        let left = end.saturating_duration_since(Instant::now());
        if incoming.is_closed() || left == Duration::ZERO {
            return Ok(None);
        }
        // The request may not have been taken as a whole.
        connection.flush()?;
        poll_one(connection, PollFlags::IN, left);
        incoming.fill(connection)?;
    }
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use super::*;
    use disco_engine::token::Token;

    #[test]
    fn only_a_refused_connection_is_explained_by_a_session_that_does_not_listen() {
        let ask = |address: &str| {
            let options = JoinOptions::new(address, Token::random().unwrap());
            status(&options).unwrap_err().to_string()
        };
        let hint = "only a session that waits for nodes listens";
        let closed = [0, 1].map(|_| TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().to_string());
        assert!(ask(&closed[0]).contains(hint) && ask(&closed.join(",")).contains(hint));
        // Names without a port.
        for address in ["refused", "refused,other", &format!("refused,{}", closed[0])] {
            let why = ask(address);
            assert!(!why.contains(hint), "{why}");
        }
    }
}
