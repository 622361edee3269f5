//! Encryption of connections between nodes: the Noise protocol `Noise_NNpsk0_25519_AESGCM_SHA256`, by the crate `snow`.
//!
//! The pre-shared key is derived from the session's token. Both ends contribute an ephemeral key of X25519, which they
//! forget, so a token that leaks later does not decrypt recorded traffic (forward secrecy). After the
//! [handshake](crate::handshake), all bytes are sent as records:
//!
//! ```text
//! record   u16 little endian: length n │ n bytes: at most 65,519 bytes of the stream, encrypted, and 16 bytes of tag
//! ```
//!
//! Each direction has its own key. The nonce of a record is its number in its direction, from 0, which is not sent. So a
//! record that was changed, left out, repeated, reordered, or sent back to its sender fails to open, and the connection
//! ends. After each 2^20 records of a direction, both ends change that direction's key by Noise's function REKEY; one key
//! thus encrypts at most 64 GiB. TLS 1.3 permits 2^24.5 records of 16 KiB for each key (RFC 8446, 5.5), six times as much.

#[cfg_attr(not(feature = "nodes"), path = "off.rs")]
mod cipher;

use std::fmt;
use std::ops::Range;
use std::sync::{Arc, PoisonError, RwLock};

use disco_core::{Error, Result};

pub(crate) use self::cipher::HandshakeState;
pub use self::cipher::check;
use self::cipher::{StatelessTransportState, begin};
use crate::token::Token;

/// Bytes that the handshake's messages add to their content: an ephemeral key and a tag.
pub(crate) const MESSAGE_OVERHEAD_BYTES: usize = 32 + TAG_BYTES;
/// Bytes of the stream in one record.
pub const MAX_PLAIN_BYTES: usize = MAX_CIPHER_BYTES - TAG_BYTES;

const TAG_BYTES: usize = 16;
const LENGTH_BYTES: usize = 2;
/// Noise's limit.
const MAX_CIPHER_BYTES: usize = 65_535;
/// Records of one direction that are encrypted with one key.
const RECORDS_PER_KEY: u64 = 1 << 20;
/// Bytes that one read may add to those of an incomplete record.
const READ_BYTES: usize = 64 << 10;

/// The keys of a connection, one for each direction.
#[derive(Clone)]
pub struct Keys(Arc<RwLock<StatelessTransportState>>);

/// Begins a handshake as a node. Both ends must give the same `prologue`.
///
/// # Errors
/// The system gives no random numbers.
pub(crate) fn initiator(token: &Token, prologue: &[u8]) -> Result<HandshakeState> {
    begin(token.bytes(), prologue, true)
}

/// Begins a handshake as the controller. Both ends must give the same `prologue`.
///
/// # Errors
/// As [`initiator`].
pub(crate) fn responder(token: &Token, prologue: &[u8]) -> Result<HandshakeState> {
    begin(token.bytes(), prologue, false)
}

fn failed(what: &str, error: impl fmt::Display) -> Error {
    Error::protocol(format!("{what}: {error}"))
}

impl Keys {
    /// The keys of a complete handshake.
    ///
    /// # Errors
    /// A message of the handshake is missing.
    pub(crate) fn of(handshake: HandshakeState) -> Result<Self> {
        let state = handshake.into_stateless_transport_mode();
        let state = state.map_err(|error| failed("the handshake is incomplete", error))?;
        Ok(Self(Arc::new(RwLock::new(state))))
    }
}

disco_core::format_as!(Debug for Keys, |_| "Keys");

/// Encrypts the bytes that one end sends.
#[derive(Debug)]
pub struct Sealer {
    keys: Keys,
    /// Number of the next record.
    number: u64,
    plain: Vec<u8>,
}

impl Sealer {
    /// Encrypts with these keys, from record 0 on.
    pub fn new(keys: Keys) -> Self {
        Self { keys, number: 0, plain: Vec::new() }
    }

    /// Makes a record of the first bytes of `pieces`, at most [`MAX_PLAIN_BYTES`]. Returns how many bytes it has.
    ///
    /// # Errors
    /// The key can't encrypt.
    pub fn seal<'a>(&mut self, pieces: impl Iterator<Item = &'a [u8]>, record: &mut Vec<u8>) -> Result<usize> {
        self.plain.clear();
        for piece in pieces {
            let room = MAX_PLAIN_BYTES - self.plain.len();
            self.plain.extend_from_slice(&piece[..piece.len().min(room)]);
            if self.plain.len() == MAX_PLAIN_BYTES {
                break;
            }
        }
        if self.number > 0 && self.number.is_multiple_of(RECORDS_PER_KEY) {
            self.keys.0.write().unwrap_or_else(PoisonError::into_inner).rekey_outgoing();
        }
        record.resize(LENGTH_BYTES + self.plain.len() + TAG_BYTES, 0);
        let keys = self.keys.0.read().unwrap_or_else(PoisonError::into_inner);
        let sealed = keys.write_message(self.number, &self.plain, &mut record[LENGTH_BYTES..]);
        let length = sealed.map_err(|error| failed("a record can't be encrypted", error))? as u16;
        record[..LENGTH_BYTES].copy_from_slice(&length.to_le_bytes());
        self.number += 1;
        Ok(self.plain.len())
    }
}

/// Decrypts the bytes that the other end sends.
#[derive(Debug)]
pub struct Opener {
    keys: Keys,
    /// Number of the next record.
    number: u64,
    buffer: Vec<u8>,
    /// The received bytes that are not opened yet.
    unread: Range<usize>,
}

impl Opener {
    /// Decrypts with these keys, from record 0 on.
    pub fn new(keys: Keys) -> Self {
        Self { keys, number: 0, buffer: Vec::new(), unread: 0..0 }
    }

    /// Appends the bytes that `read` returns.
    ///
    /// # Errors
    /// The error of `read`.
    pub fn fill<E>(&mut self, read: impl FnOnce(&mut [u8]) -> Result<usize, E>) -> Result<usize, E> {
        self.buffer.copy_within(self.unread.clone(), 0);
        self.unread = 0..self.unread.len();
        let room = self.unread.end + READ_BYTES;
        // The buffer keeps its size: clearing it for each read would cost more than a small record.
        if self.buffer.len() < room {
            self.buffer.resize(room, 0);
        }
        let read = read(&mut self.buffer[self.unread.end..room])?;
        self.unread.end += read;
        Ok(read)
    }

    /// Opens the next record into `plain`, which has room for [`MAX_PLAIN_BYTES`]. Returns the number of bytes, or none
    /// if no whole record has come.
    ///
    /// # Errors
    /// The record is not the next one of the other end.
    pub fn open(&mut self, plain: &mut [u8]) -> Result<Option<usize>> {
        let unread = &self.buffer[self.unread.clone()];
        let Some((length, rest)) = unread.split_first_chunk::<LENGTH_BYTES>() else { return Ok(None) };
        let length = usize::from(u16::from_le_bytes(*length));
        if length < TAG_BYTES {
            return Err(Error::protocol("the connection is encrypted, and a record has no tag"));
        }
        let Some(record) = rest.get(..length) else { return Ok(None) };
        if self.number > 0 && self.number.is_multiple_of(RECORDS_PER_KEY) {
            self.keys.0.write().unwrap_or_else(PoisonError::into_inner).rekey_incoming();
        }
        let keys = self.keys.0.read().unwrap_or_else(PoisonError::into_inner);
        let opened = keys.read_message(self.number, record, plain).map_err(|_| {
            Error::protocol(format!(
                "record {} of the encrypted connection was changed on its way, or does not come from the other end",
                self.number
            ))
        })?;
        self.number += 1;
        self.unread.start += LENGTH_BYTES + length;
        Ok(Some(opened))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A sealer of the node and an opener of the controller, and the same in the other direction.
    fn ends() -> [(Sealer, Opener); 2] {
        let token = Token::new("a secret of many words").unwrap();
        let (mut node, mut controller) = (initiator(&token, b"").unwrap(), responder(&token, b"").unwrap());
        let (mut message, mut content) = ([0; MESSAGE_OVERHEAD_BYTES], [0; 0]);
        node.write_message(&[], &mut message).unwrap();
        controller.read_message(&message, &mut content).unwrap();
        controller.write_message(&[], &mut message).unwrap();
        node.read_message(&message, &mut content).unwrap();
        let (node, controller) = (Keys::of(node).unwrap(), Keys::of(controller).unwrap());
        [(node.clone(), controller.clone()), (controller, node)].map(|(from, to)| (Sealer::new(from), Opener::new(to)))
    }

    fn record(sealer: &mut Sealer, plain: &[u8]) -> Vec<u8> {
        let mut record = Vec::new();
        assert_eq!(sealer.seal([plain].into_iter(), &mut record).unwrap(), plain.len());
        record
    }

    /// Gives `bytes` to the opener, and opens the next record.
    fn open(opener: &mut Opener, bytes: &[u8]) -> Result<Option<Vec<u8>>> {
        for piece in bytes.chunks(READ_BYTES) {
            let fill = |into: &mut [u8]| {
                into[..piece.len()].copy_from_slice(piece);
                Ok::<_, ()>(piece.len())
            };
            opener.fill(fill).unwrap();
        }
        let mut plain = vec![0; MAX_PLAIN_BYTES];
        Ok(opener.open(&mut plain)?.map(|bytes| plain[..bytes].to_vec()))
    }

    #[test]
    fn records_open_in_both_directions_however_they_are_cut() {
        for (mut sealer, mut opener) in ends() {
            let mut record = Vec::new();
            let pieces: [&[u8]; 4] = [b"one", b"", b"two", &[7; 2 * MAX_PLAIN_BYTES]];
            assert_eq!(sealer.seal(pieces.into_iter(), &mut record).unwrap(), MAX_PLAIN_BYTES);
            for end in [0, 1, 2, 3, record.len() / 2, record.len() - 1] {
                let mut opener = Opener::new(opener.keys.clone());
                assert_eq!(open(&mut opener, &record[..end]).unwrap(), None);
                let plain = open(&mut opener, &record[end..]).unwrap().unwrap();
                assert!(plain.len() == MAX_PLAIN_BYTES && plain.starts_with(b"onetwo\x07") && plain.ends_with(&[7]));
            }
            open(&mut opener, &record).unwrap().unwrap();
            let two =
                [super::tests::record(&mut sealer, b"second"), super::tests::record(&mut sealer, b"third")].concat();
            assert_eq!(open(&mut opener, &two).unwrap().unwrap(), b"second");
            assert_eq!(open(&mut opener, &[]).unwrap().unwrap(), b"third");
            assert_eq!(open(&mut opener, &[]).unwrap(), None);
        }
    }

    #[test]
    fn a_record_with_any_changed_bit_does_not_open() {
        let [(mut sealer, opener), _] = ends();
        let record = record(&mut sealer, b"a command");
        for bit in 0..8 * record.len() {
            let mut changed = record.clone();
            changed[bit / 8] ^= 1 << (bit % 8);
            let opened = open(&mut Opener::new(opener.keys.clone()), &changed);
            // A greater length waits for bytes that do not come.
            assert!(!matches!(opened, Ok(Some(_))), "bit {bit}: {opened:?}");
        }
    }

    #[test]
    fn a_record_that_was_left_out_repeated_or_sent_back_does_not_open() {
        let [(mut sealer, mut opener), (_, mut back)] = ends();
        let [first, second] = [(); 2].map(|()| record(&mut sealer, b"a command"));
        assert_ne!(first, second);
        let why = "record 0 of the encrypted connection was changed on its way, or does not come from the other end";
        assert_eq!(open(&mut Opener::new(opener.keys.clone()), &second).unwrap_err().to_string(), why);
        assert_eq!(open(&mut back, &first).unwrap_err().to_string(), why);
        open(&mut opener, &first).unwrap().unwrap();
        assert_eq!(open(&mut opener, &first).unwrap_err().to_string(), why.replace('0', "1"));
    }

    #[test]
    fn both_ends_change_the_key_of_a_direction_after_the_same_record() {
        let [(mut sealer, mut opener), (mut back, mut returned)] = ends();
        (sealer.number, opener.number) = (RECORDS_PER_KEY - 1, RECORDS_PER_KEY - 1);
        for _ in 0..3 {
            let record = record(&mut sealer, b"a command");
            assert_eq!(open(&mut opener, &record).unwrap().unwrap(), b"a command");
        }
        // The other direction keeps its key.
        let record = record(&mut back, b"a reply");
        assert_eq!(open(&mut returned, &record).unwrap().unwrap(), b"a reply");
        // The old key does not open a record of the new one.
        let [(mut sealer, mut opener), _] = ends();
        (sealer.number, opener.number) = (RECORDS_PER_KEY, RECORDS_PER_KEY + 1);
        let record = super::tests::record(&mut sealer, b"a command");
        opener.number = RECORDS_PER_KEY - 1;
        assert!(open(&mut opener, &record).is_err());
    }
}
