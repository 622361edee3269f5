//! Heads of messages.
//!
//! ```text
//! message   head: u8 kind, 3 bytes 0, u32 length t of the call, u64 number, u64 length n of the content     24 bytes
//!           the call as text, t bytes: what the sender has called; in a goodbye, the cause
//!           the content, n bytes
//! ```
//!
//! Numbers are little endian. Messages between two ranks arrive in the order in which they were sent, so a receiver knows which
//! one comes next. It compares the head and the call with its own, and the text is for the error if they differ.

use disco_core::{Error, Result};

/// Bytes of a head.
pub(crate) const HEAD_BYTES: usize = 24;
/// The longest text of a call: the counts of an all-gather V of 4096 ranks.
const MAX_CALL_BYTES: u32 = 1 << 16;

/// What a message belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// A collective, or a split.
    Collective,
    /// A send.
    Send,
    /// The sender has left: it has dropped its communicator, or its call is the cause. No message follows.
    Goodbye,
    /// Nothing to receive: a rank that waits asks the system of the other machine for an acknowledgement, and tells in which
    /// collective it waits.
    Probe,
}

/// The head of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Head {
    pub(crate) kind: Kind,
    /// Bytes of the call.
    pub(crate) call: u32,
    /// The number of the collective among those of the communicator, or of the send among those to the receiver.
    pub(crate) number: u64,
    /// Bytes of the content.
    pub(crate) content: u64,
}

impl Head {
    pub(crate) fn to_bytes(self) -> [u8; HEAD_BYTES] {
        let mut bytes = [0; HEAD_BYTES];
        bytes[0] = match self.kind {
            Kind::Collective => 0,
            Kind::Send => 1,
            Kind::Goodbye => 2,
            Kind::Probe => 3,
        };
        bytes[4..8].copy_from_slice(&self.call.to_le_bytes());
        bytes[8..16].copy_from_slice(&self.number.to_le_bytes());
        bytes[16..].copy_from_slice(&self.content.to_le_bytes());
        bytes
    }

    /// # Errors
    /// The bytes are none of [`Head::to_bytes`], or the call is too long.
    pub(crate) fn read(bytes: &[u8; HEAD_BYTES]) -> Result<Self> {
        let [kind, _, _, _, c0, c1, c2, c3, rest @ ..] = *bytes;
        let kind = match kind {
            0 => Kind::Collective,
            1 => Kind::Send,
            2 => Kind::Goodbye,
            3 => Kind::Probe,
            other => return Err(Error::protocol(format!("a message of the unknown kind {other}"))),
        };
        let number = |at: usize| {
            let mut word = [0; 8];
            word.copy_from_slice(&rest[at..at + 8]);
            u64::from_le_bytes(word)
        };
        let call = u32::from_le_bytes([c0, c1, c2, c3]);
        if call > MAX_CALL_BYTES {
            return Err(Error::protocol(format!("a call of {call} bytes; the limit is {MAX_CALL_BYTES}")));
        }
        Ok(Self { kind, call, number: number(0), content: number(8) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_head_is_read_as_it_was_written() {
        for kind in [Kind::Collective, Kind::Send, Kind::Goodbye, Kind::Probe] {
            let head = Head { kind, call: 23, number: 1 << 40, content: u64::MAX };
            assert_eq!(Head::read(&head.to_bytes()).unwrap(), head);
        }
    }

    #[test]
    fn an_unknown_kind_and_a_call_that_is_too_long_are_errors() {
        assert!(Head::read(&[9; HEAD_BYTES]).is_err());
        let head = Head { kind: Kind::Send, call: MAX_CALL_BYTES + 1, number: 0, content: 0 };
        assert!(Head::read(&head.to_bytes()).is_err());
    }
}
