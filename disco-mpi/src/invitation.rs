//! What rank 0 tells the others, in letters of one size.
//!
//! ```text
//! kind   1 byte    1 an invitation, 2 and 3 rank 0 ends, 4 where to join
//! length 2 bytes   little endian
//! text             joining: milliseconds, token, and addresses parted by commas, with a blank in between
//! ```

use std::fmt;
use std::time::Duration;

use disco_core::{Error, Result};

/// Bytes of a letter, and of the longest text in it.
pub(crate) const MESSAGE_BYTES: usize = MAX_TEXT_BYTES + HEADER_BYTES;
const MAX_TEXT_BYTES: usize = 509;
const HEADER_BYTES: usize = 3;

/// What a rank is asked to do for a session.
#[allow(clippy::exhaustive_enums, reason = "whoever gets one has to do what it says, whichever it is")]
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SessionInvitation {
    /// To serve as a worker of rank 0's machine, with an invitation that has this text.
    Worker(String),
    /// To join as a node, from wherever it is.
    Node(NodeInvitation),
}

/// How a rank finds rank 0. It is the node that has its number.
#[non_exhaustive]
#[derive(Clone, PartialEq, Eq)]
pub struct NodeInvitation {
    /// The session's token, which has no blanks.
    pub token: String,
    /// How long joining may take.
    pub start: Duration,
    /// Where rank 0 may be reached, each as `HOST:PORT`; the first ones, as many as a letter has room for.
    pub addresses: Vec<String>,
}

/// Anything that a rank is told.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Message {
    Invitation(SessionInvitation),
    /// Rank 0 ends; whether MPI can be finalised.
    End(bool),
}

impl NodeInvitation {
    /// A session with this token, at these addresses.
    pub fn new(token: String, start: Duration, addresses: Vec<String>) -> Self {
        Self { token, start, addresses }
    }

    fn write(&self) -> String {
        let millis = u64::try_from(self.start.as_millis()).unwrap_or(u64::MAX);
        let mut text = format!("{millis} {}", self.token);
        for (index, address) in self.addresses.iter().enumerate() {
            if text.len() + 1 + address.len() > MAX_TEXT_BYTES {
                tracing::debug!(left = self.addresses.len() - index, "addresses that no message has room for");
                break;
            }
            text.push(if index == 0 { ' ' } else { ',' });
            text.push_str(address);
        }
        text
    }

    fn read(text: &str) -> Result<Self> {
        let parse = || {
            let mut parts = text.splitn(3, ' ');
            let start = Duration::from_millis(parts.next()?.parse().ok()?);
            let (token, addresses) = (parts.next()?.to_owned(), parts.next()?);
            Some(Self { token, start, addresses: addresses.split(',').map(str::to_owned).collect() })
        };
        // Its text has a token, and is not shown.
        parse().ok_or_else(|| Error::protocol("mpi: a message that says where to join can't be read"))
    }
}

impl Message {
    /// As it is sent.
    ///
    /// # Errors
    /// A text that is too long.
    pub(crate) fn write(&self) -> Result<[u8; MESSAGE_BYTES]> {
        let (kind, text) = match self {
            Self::Invitation(SessionInvitation::Worker(text)) => (1, text.clone()),
            Self::End(is_finished) => (if *is_finished { 2 } else { 3 }, String::new()),
            Self::Invitation(SessionInvitation::Node(invitation)) => (4, invitation.write()),
        };
        if text.len() > MAX_TEXT_BYTES {
            return Err(Error::invalid(format!("mpi: {} bytes are too many for a message to a rank", text.len())));
        }
        let mut message = [0; MESSAGE_BYTES];
        message[0] = kind;
        message[1..HEADER_BYTES].copy_from_slice(&(text.len() as u16).to_le_bytes());
        message[HEADER_BYTES..HEADER_BYTES + text.len()].copy_from_slice(text.as_bytes());
        Ok(message)
    }

    /// What came.
    ///
    /// # Errors
    /// It is none of this version.
    pub(crate) fn read(message: &[u8; MESSAGE_BYTES]) -> Result<Self> {
        let length = usize::from(u16::from_le_bytes([message[1], message[2]])).min(MAX_TEXT_BYTES);
        let text = String::from_utf8_lossy(&message[HEADER_BYTES..HEADER_BYTES + length]);
        match message[0] {
            1 => Ok(Self::Invitation(SessionInvitation::Worker(text.into_owned()))),
            kind @ (2 | 3) => Ok(Self::End(kind == 2)),
            4 => NodeInvitation::read(&text).map(|invitation| Self::Invitation(SessionInvitation::Node(invitation))),
            kind => {
                Err(Error::protocol(format!("mpi: rank 0 sends a message of kind {kind}: do all run one program?")))
            }
        }
    }
}

impl fmt::Debug for NodeInvitation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("NodeInvitation").field("addresses", &self.addresses).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn node(addresses: usize) -> NodeInvitation {
        let addresses = (0..addresses).map(|index| format!("192.168.100.{}:40000", 100 + index)).collect();
        NodeInvitation::new("0123456789abcdef".repeat(4), Duration::from_secs(30), addresses)
    }

    #[test]
    fn letters_are_read_as_they_were_written() {
        let invitation = SessionInvitation::Worker("3:disco-1f:00ff".into());
        for message in
            [Message::Invitation(invitation), Message::Invitation(SessionInvitation::Node(node(3))), Message::End(true)]
        {
            assert_eq!(Message::read(&message.write().unwrap()).unwrap(), message);
        }
        assert_eq!(Message::read(&Message::End(false).write().unwrap()).unwrap(), Message::End(false));
    }

    #[test]
    fn joining_may_take_for_ever() {
        let message = Message::Invitation(SessionInvitation::Node(NodeInvitation { start: Duration::MAX, ..node(1) }));
        let Message::Invitation(SessionInvitation::Node(read)) = Message::read(&message.write().unwrap()).unwrap()
        else {
            panic!()
        };
        assert_eq!(read.start, Duration::from_millis(u64::MAX));
    }

    #[test]
    fn a_letter_takes_as_many_addresses_as_it_has_room_for() {
        let Message::Invitation(SessionInvitation::Node(read)) =
            Message::read(&Message::Invitation(SessionInvitation::Node(node(100))).write().unwrap()).unwrap()
        else {
            panic!()
        };
        assert_eq!(read.addresses, node(19).addresses);
        assert_eq!(read.token, node(1).token);
        let long = Message::Invitation(SessionInvitation::Worker("a".repeat(510))).write().unwrap_err().to_string();
        assert_eq!(long, "mpi: 510 bytes are too many for a message to a rank");
    }

    #[test]
    fn what_is_no_letter_is_refused_without_its_text() {
        let mut message = Message::Invitation(SessionInvitation::Node(node(1))).write().unwrap();
        message[3] = b'?';
        let error = Message::read(&message).unwrap_err().to_string();
        assert_eq!(error, "mpi: a message that says where to join can't be read");
        message[0] = 9;
        let error = Message::read(&message).unwrap_err().to_string();
        assert_eq!(error, "mpi: rank 0 sends a message of kind 9: do all run one program?");
        assert!(!format!("{:?}", node(1)).contains("0123456789abcdef"));
    }
}
