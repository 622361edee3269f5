//! The first bytes of a connection: which ranks it joins.
//!
//! ```text
//! rank that connects   HELLO  magic, version, from, to, how the connection goes on ──▶    21 bytes
//! ```
//!
//! Numbers are little endian. A [handshake](disco_engine::rank_handshake) follows, whose prologue is the HELLO and the
//! name of the communicator.

use disco_core::{Error, Result};

/// Bytes of a HELLO.
pub(crate) const HELLO_BYTES: usize = 21;

const MAGIC: &[u8; 8] = b"discotcp";
/// The version of the messages between ranks. It changes with [`Hello`] and [`Head`](crate::head::Head).
const VERSION: u32 = 4;

/// The ends of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Hello {
    /// The rank that connects.
    pub(crate) from: u32,
    /// The rank that accepts.
    pub(crate) to: u32,
    /// Whether the connection is encrypted after the handshake.
    pub(crate) encrypts: bool,
    /// Whether the rank that connects has mapped the memory of the other one, through which their bytes may go.
    pub(crate) shares: bool,
}

const ENCRYPTS: u8 = 1;
const SHARES: u8 = 2;

impl Hello {
    pub(crate) fn to_bytes(self) -> [u8; HELLO_BYTES] {
        let mut bytes = [0; HELLO_BYTES];
        bytes[..8].copy_from_slice(MAGIC);
        bytes[8..12].copy_from_slice(&VERSION.to_le_bytes());
        bytes[12..16].copy_from_slice(&self.from.to_le_bytes());
        bytes[16..20].copy_from_slice(&self.to.to_le_bytes());
        bytes[20] = (u8::from(self.encrypts) * ENCRYPTS) | (u8::from(self.shares) * SHARES);
        bytes
    }

    /// Reads a HELLO to rank `to`.
    ///
    /// # Errors
    /// The bytes are no HELLO of this version, or one to another rank.
    pub(crate) fn read(bytes: &[u8; HELLO_BYTES], to: u32) -> Result<Self> {
        let word = |at: usize| u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]]);
        if bytes[..8] != *MAGIC {
            return Err(Error::protocol("the first bytes are not those of a rank of the backend tcp"));
        }
        if word(8) != VERSION {
            let (theirs, ours) = (word(8), VERSION);
            return Err(Error::protocol(format!("the other rank speaks version {theirs} of tcp, this one {ours}")));
        }
        let has = |bit: u8| bytes[20] & bit != 0;
        let hello = Self { from: word(12), to, encrypts: has(ENCRYPTS), shares: has(SHARES) };
        if hello.to_bytes() != *bytes {
            return Err(Error::protocol("the connection is for another rank"));
        }
        Ok(hello)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_hello_is_read_by_its_rank_and_refused_by_others() {
        let hello = Hello { from: 3, to: 1, encrypts: true, shares: false };
        let bytes = hello.to_bytes();
        assert_eq!(Hello::read(&bytes, 1).unwrap(), hello);
        let sharing = Hello { encrypts: false, shares: true, ..hello };
        assert_eq!(Hello::read(&sharing.to_bytes(), 1).unwrap(), sharing);
        assert!(Hello::read(&bytes, 2).is_err());
        assert!(Hello::read(&[0; HELLO_BYTES], 1).is_err());
    }
}
