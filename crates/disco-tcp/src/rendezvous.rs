//! The rendezvous of a communicator: a random name, the key of its connections, and the rendezvous of `local` for ranks of one
//! machine.

use std::fmt;

use disco_core::{Error, Rendezvous, Result};
use disco_engine::random;
use disco_engine::token::Token;

const NAME_BYTES: usize = 8;
const KEY_BYTES: usize = 32;

/// What the controller gives all ranks of a new communicator. As bytes: name, key, and the bytes of `local`.
pub(crate) struct Meeting {
    name: [u8; NAME_BYTES],
    key: [u8; KEY_BYTES],
    local: Rendezvous,
}

impl Meeting {
    /// A meeting with a fresh name and a fresh key.
    ///
    /// # Errors
    /// The system gives no random numbers.
    pub(crate) fn fresh(local: Rendezvous) -> Result<Self> {
        let random = |error| Error::system("no random numbers for a communicator", error);
        Ok(Self { name: random::bytes().map_err(random)?, key: random::bytes().map_err(random)?, local })
    }

    pub(crate) fn write(&self) -> Result<Rendezvous> {
        Rendezvous::new([&self.name[..], &self.key, self.local.as_bytes()].concat())
    }

    /// # Errors
    /// The rendezvous is that of another backend.
    pub(crate) fn read(rendezvous: &Rendezvous) -> Result<Self> {
        let bytes = rendezvous.as_bytes();
        let parts = bytes.split_first_chunk().and_then(|(name, rest)| Some((name, rest.split_first_chunk()?)));
        let (name, (key, local)) = parts
            .ok_or_else(|| Error::protocol(format!("{} bytes are not a rendezvous of the backend tcp", bytes.len())))?;
        Ok(Self { name: *name, key: *key, local: Rendezvous::new(local)? })
    }

    /// The rendezvous of `local`.
    pub(crate) fn local(&self) -> &Rendezvous {
        &self.local
    }

    /// The name, which begins the keys of the communicator in the session's store.
    pub(crate) fn name(&self) -> String {
        format!("disco.tcp {}", random::hex(&self.name))
    }

    /// The key that both ends of a connection must have.
    ///
    /// # Errors
    /// None for the keys of this file.
    pub(crate) fn key(&self) -> Result<Token> {
        Token::new(&random::hex(&self.key))
    }
}

impl fmt::Debug for Meeting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.name())
    }
}
