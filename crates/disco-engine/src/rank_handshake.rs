//! The handshake of two ranks that connect to each other. Does no I/O.
//!
//! ```text
//! rank that connects   Noise message 1: e, psk ──▶                48 bytes
//!                      ◀── Noise message 2: e, ee                 48 bytes   rank that accepts
//! ```
//!
//! The messages are those of the [Noise pattern NNpsk0](crate::noise), without content: only an end with the key can make and
//! read them. The prologue has all that both ends must agree on. A first message can be recorded and sent again, so the rank
//! that accepts waits for a first record: only an end that has read the second message can make it.

use disco_core::{Error, Result};

use crate::noise::{self, HandshakeState, Keys, MESSAGE_OVERHEAD_BYTES};
use crate::token::Token;

/// Bytes of each message.
pub const MESSAGE_BYTES: usize = MESSAGE_OVERHEAD_BYTES;

/// One end's part of the handshake.
#[derive(Debug)]
pub struct RankHandshake(HandshakeState);

impl RankHandshake {
    /// The part of the rank that connects.
    ///
    /// # Errors
    /// The system gives no random numbers; the program is built without the feature `nodes`.
    pub fn connecting(key: &Token, prologue: &[u8]) -> Result<Self> {
        noise::initiator(key, prologue).map(Self)
    }

    /// The part of the rank that accepts.
    ///
    /// # Errors
    /// As [`connecting`](Self::connecting).
    pub fn accepting(key: &Token, prologue: &[u8]) -> Result<Self> {
        noise::responder(key, prologue).map(Self)
    }

    /// The next message of this end.
    ///
    /// # Errors
    /// It is the other end's turn.
    pub fn write(&mut self) -> Result<[u8; MESSAGE_BYTES]> {
        let mut message = [0; MESSAGE_BYTES];
        let written = self.0.write_message(&[], &mut message);
        written.map_err(|error| Error::state(format!("the handshake can't go on: {error}")))?;
        Ok(message)
    }

    /// Reads the message of the other end.
    ///
    /// # Errors
    /// The other end has another key or another prologue.
    pub fn read(&mut self, message: &[u8; MESSAGE_BYTES]) -> Result<()> {
        let refused = |_| Error::protocol("the other end has another key, or is no rank of this communicator");
        self.0.read_message(message, &mut []).map_err(refused).map(drop)
    }

    /// The keys of the connection, once both messages have been read.
    ///
    /// # Errors
    /// A message is missing.
    pub fn keys(self) -> Result<Keys> {
        Keys::of(self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn token(text: &str) -> Token {
        Token::new(text).unwrap()
    }

    #[test]
    fn ends_with_one_key_and_one_prologue_have_a_connection() {
        let key = token("a secret of many words");
        let mut connecting = RankHandshake::connecting(&key, b"1 to 0").unwrap();
        let mut accepting = RankHandshake::accepting(&key, b"1 to 0").unwrap();
        accepting.read(&connecting.write().unwrap()).unwrap();
        connecting.read(&accepting.write().unwrap()).unwrap();
        assert!(connecting.keys().is_ok() && accepting.keys().is_ok());
    }

    #[test]
    fn another_key_or_another_prologue_is_an_error() {
        for (key, prologue) in [("another secret of many words", "1 to 0"), ("a secret of many words", "2 to 0")] {
            let mut connecting = RankHandshake::connecting(&token("a secret of many words"), b"1 to 0").unwrap();
            let mut accepting = RankHandshake::accepting(&token(key), prologue.as_bytes()).unwrap();
            assert!(accepting.read(&connecting.write().unwrap()).is_err());
        }
    }
}
