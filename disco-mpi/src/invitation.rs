//! Messages from rank 0 to the other ranks, in packets of a fixed size.
//!
//! ```text
//! kind   1 byte    1 invitation as a worker, 2 and 3 rank 0 ends (3: with pending operations), 4 invitation as a node
//! length 2 bytes   of the text, little endian
//! text             invitation as a node: `MILLISECONDS TOKEN ADDRESS,ADDRESS…`
//! ```

use std::time::Duration;

use disco_core::{Error, Result};

/// Size of a packet.
pub(crate) const MESSAGE_BYTES: usize = MAX_TEXT_BYTES + HEADER_BYTES;
const MAX_TEXT_BYTES: usize = 509;
const HEADER_BYTES: usize = 3;

/// An invitation of a rank to a session.
#[allow(clippy::exhaustive_enums, reason = "a rank must handle every kind of invitation")]
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SessionInvitation {
    /// Invites the rank as a worker on rank 0's machine, with the text of an invitation of the process lane.
    Worker(String),
    /// Invites the rank as a node, on any machine.
    Node(NodeInvitation),
}

/// An invitation to join a session as a node. The number of the node is the rank.
#[non_exhaustive]
#[derive(Clone, PartialEq, Eq)]
pub struct NodeInvitation {
    /// The session's token, without spaces.
    pub token: String,
    /// Limit for the join.
    pub start: Duration,
    /// Addresses of rank 0 as `HOST:PORT`. Only the first ones that fit in a packet are sent.
    pub addresses: Vec<String>,
}

/// A message from rank 0.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Message {
    Invitation(SessionInvitation),
    /// Rank 0 ends. The flag tells whether no operation was left pending, so that MPI can be finalised.
    End(bool),
}

impl NodeInvitation {
    /// An invitation to the session with this token, at these addresses.
    pub fn new(token: String, start: Duration, addresses: Vec<String>) -> Self {
        Self { token, start, addresses }
    }

    fn write(&self) -> String {
        let millis = u64::try_from(self.start.as_millis()).unwrap_or(u64::MAX);
        let mut text = format!("{millis} {}", self.token);
        for (index, address) in self.addresses.iter().enumerate() {
            if text.len() + 1 + address.len() > MAX_TEXT_BYTES {
                tracing::debug!(
                    left = self.addresses.len() - index,
                    "addresses omitted from an invitation, which is full"
                );
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
        // The error does not quote the text, which has the token.
        parse().ok_or_else(|| Error::protocol("mpi: rank 0 has sent an invitation as a node that can't be parsed"))
    }
}

impl Message {
    /// Encodes the message.
    ///
    /// # Errors
    /// The text is too long.
    pub(crate) fn write(&self) -> Result<[u8; MESSAGE_BYTES]> {
        let (kind, text) = match self {
            Self::Invitation(SessionInvitation::Worker(text)) => (1, text.clone()),
            Self::End(is_finished) => (if *is_finished { 2 } else { 3 }, String::new()),
            Self::Invitation(SessionInvitation::Node(invitation)) => (4, invitation.write()),
        };
        if text.len() > MAX_TEXT_BYTES {
            return Err(Error::invalid(format!(
                "mpi: an invitation of {} bytes exceeds the limit of {MAX_TEXT_BYTES} bytes",
                text.len()
            )));
        }
        let mut message = [0; MESSAGE_BYTES];
        message[0] = kind;
        message[1..HEADER_BYTES].copy_from_slice(&(text.len() as u16).to_le_bytes());
        message[HEADER_BYTES..HEADER_BYTES + text.len()].copy_from_slice(text.as_bytes());
        Ok(message)
    }

    /// Decodes a message.
    ///
    /// # Errors
    /// The message is not one of this version.
    pub(crate) fn read(message: &[u8; MESSAGE_BYTES]) -> Result<Self> {
        let length = usize::from(u16::from_le_bytes([message[1], message[2]])).min(MAX_TEXT_BYTES);
        let text = String::from_utf8_lossy(&message[HEADER_BYTES..HEADER_BYTES + length]);
        match message[0] {
            1 => Ok(Self::Invitation(SessionInvitation::Worker(text.into_owned()))),
            kind @ (2 | 3) => Ok(Self::End(kind == 2)),
            4 => NodeInvitation::read(&text).map(|invitation| Self::Invitation(SessionInvitation::Node(invitation))),
            kind => Err(Error::protocol(format!(
                "mpi: rank 0 has sent a message of unknown kind {kind}; do all ranks run the same program?"
            ))),
        }
    }
}

disco_core::format_as!(Debug for NodeInvitation, |it| "NodeInvitation {{ addresses: {:?}, .. }}", it.addresses);

#[cfg(test)]
mod tests {
    use super::*;

    fn node(addresses: usize) -> NodeInvitation {
        let addresses = (0..addresses).map(|index| format!("192.168.100.{}:40000", 100 + index)).collect();
        NodeInvitation::new("0123456789abcdef".repeat(4), Duration::from_secs(30), addresses)
    }

    #[test]
    fn messages_are_decoded_as_they_were_encoded() {
        let invitation = SessionInvitation::Worker("3:disco-1f:00ff".into());
        for message in
            [Message::Invitation(invitation), Message::Invitation(SessionInvitation::Node(node(3))), Message::End(true)]
        {
            assert_eq!(Message::read(&message.write().unwrap()).unwrap(), message);
        }
        assert_eq!(Message::read(&Message::End(false).write().unwrap()).unwrap(), Message::End(false));
    }

    #[test]
    fn an_unlimited_join_is_encoded_as_the_longest_time() {
        let message = Message::Invitation(SessionInvitation::Node(NodeInvitation { start: Duration::MAX, ..node(1) }));
        let Message::Invitation(SessionInvitation::Node(read)) = Message::read(&message.write().unwrap()).unwrap()
        else {
            panic!()
        };
        assert_eq!(read.start, Duration::from_millis(u64::MAX));
    }

    #[test]
    fn an_invitation_has_as_many_addresses_as_fit() {
        let Message::Invitation(SessionInvitation::Node(read)) =
            Message::read(&Message::Invitation(SessionInvitation::Node(node(100))).write().unwrap()).unwrap()
        else {
            panic!()
        };
        assert_eq!(read.addresses, node(19).addresses);
        assert_eq!(read.token, node(1).token);
        let long = Message::Invitation(SessionInvitation::Worker("a".repeat(510))).write().unwrap_err().to_string();
        assert_eq!(long, "mpi: an invitation of 510 bytes exceeds the limit of 509 bytes");
    }

    #[test]
    fn an_invalid_message_is_refused_with_an_error_that_does_not_quote_it() {
        let mut message = Message::Invitation(SessionInvitation::Node(node(1))).write().unwrap();
        message[3] = b'?';
        let error = Message::read(&message).unwrap_err().to_string();
        assert_eq!(error, "mpi: rank 0 has sent an invitation as a node that can't be parsed");
        message[0] = 9;
        let error = Message::read(&message).unwrap_err().to_string();
        assert_eq!(error, "mpi: rank 0 has sent a message of unknown kind 9; do all ranks run the same program?");
        assert!(!format!("{:?}", node(1)).contains("0123456789abcdef"));
    }
}
