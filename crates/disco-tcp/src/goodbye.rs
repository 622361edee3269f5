//! How a rank leaves the others: its last message on each connection is a goodbye, with the cause if an operation has failed.

use std::thread;
use std::time::{Duration, Instant};

use disco_core::error::LossCause;
use disco_core::wire::{Reader, Writer};
use disco_core::{AbortCause, Error, Rank};

use crate::head::{Head, Kind};
use crate::link::Link;
use crate::wires::lost;

/// How long the connections of a rank that has left are read, and how often.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(2);
const DRAIN_INTERVAL: Duration = Duration::from_millis(5);

/// The most bytes of a cause's text in a goodbye. The session's store has the whole text.
const MAX_TEXT_BYTES: usize = 16 << 10;

/// A connection that a rank leaves.
pub(crate) struct Leaving {
    pub(crate) link: Box<dyn Link>,
    /// Whether a message was cut in two, so that no goodbye can follow.
    pub(crate) is_cut: bool,
}

/// Ends connections: after a failure with its cause, else because the rank has dropped its communicator.
pub(crate) fn leave(leaving: Vec<Leaving>, cause: Option<&AbortCause>) {
    if leaving.is_empty() {
        return;
    }
    let cause = cause.map(|cause| write_cause(cause, MAX_TEXT_BYTES)).unwrap_or_default();
    let head = Head { kind: Kind::Goodbye, call: cause.len() as u32, number: 0, content: 0 }.to_bytes();
    let say_goodbye = |Leaving { mut link, is_cut }| {
        if !is_cut {
            // A rank whose connection is full gets no goodbye and finds it closed.
            _ = link.send([&head, &cause]).and_then(|_| link.flush());
        }
        link.close();
        link
    };
    let links = leaving.into_iter().map(say_goodbye).collect();
    // Without a thread, the connections are closed at once.
    _ = thread::Builder::new().name("disco-tcp-close".into()).spawn(|| drain(links));
}

/// Reads connections until the other ends have closed them, or for [`DRAIN_TIMEOUT`]. If a connection were closed with unread
/// bytes, the system would discard the data that it has not sent yet.
fn drain(mut links: Vec<Box<dyn Link>>) {
    let (end, mut bytes) = (Instant::now() + DRAIN_TIMEOUT, vec![0; 4096]);
    while !links.is_empty() && Instant::now() < end {
        links.retain_mut(|link| {
            loop {
                match link.receive(&mut bytes) {
                    Ok(0) => return true,
                    Ok(_) => {}
                    Err(_) => return false,
                }
            }
        });
        thread::sleep(DRAIN_INTERVAL);
    }
}

/// The error of a rank that reads a goodbye of rank `from`, whose call this is.
pub(crate) fn error(call: &[u8], from: usize) -> Error {
    match read_cause(call) {
        _ if call.is_empty() => lost(from, LossCause::CommunicatorDropped),
        Some(cause) => Error::Aborted { cause },
        None => lost(from, LossCause::ProtocolViolation("its goodbye has no cause that can be read".into())),
    }
}

const FAILED: u32 = 0;
const CANCELLED: u32 = 1;
const DROPPED: u32 = 2;

/// A cause for other ranks: its kind, the number of a command or a rank, and the first bytes of a text.
pub(crate) fn write_cause(cause: &AbortCause, max_text_bytes: usize) -> Vec<u8> {
    let (kind, number, text) = match cause {
        AbortCause::Cancelled { command, why } => (CANCELLED, *command, why.to_string()),
        AbortCause::Dropped(rank) => (DROPPED, rank.index() as u64, String::new()),
        other => (FAILED, 0, other.to_string()),
    };
    let mut writer = Writer::default();
    writer.u32(kind);
    writer.u64(number);
    writer.bytes(&text.as_bytes()[..text.len().min(max_text_bytes)]);
    writer.into_bytes()
}

/// The cause that another rank has written; none if it is none of [`write_cause`].
pub(crate) fn read_cause(bytes: &[u8]) -> Option<AbortCause> {
    let mut reader = Reader::new(bytes);
    let (kind, number) = (reader.u32().ok()?, reader.u64().ok()?);
    let text = String::from_utf8_lossy(reader.bytes().ok()?).into_owned();
    match kind {
        FAILED => Some(text.into()),
        CANCELLED => Some(AbortCause::Cancelled { command: number, why: text.into() }),
        DROPPED => Some(AbortCause::Dropped(Rank::new(u32::try_from(number).ok()?))),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cause_is_read_as_it_was_written() {
        let cancelled = AbortCause::Cancelled { command: 7, why: "why".into() };
        for cause in [AbortCause::Failed("why".into()), cancelled, AbortCause::Dropped(Rank::new(3))] {
            assert_eq!(read_cause(&write_cause(&cause, usize::MAX)), Some(cause));
        }
        assert_eq!(read_cause(&write_cause(&"a long text".into(), 6)), Some("a long".into()));
        assert_eq!(read_cause(&[1, 2]), None);
    }
}
